package redistest

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent lets the kernel kill cmd's process when the thread that starts
// it ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// waitStopped waits until a child that was sent SIGSTOP has stopped: the signal
// is delivered some time after it was sent. WNOWAIT leaves the state to be
// seen again, so that pausing twice is fine.
func waitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err
		}
	}
}
