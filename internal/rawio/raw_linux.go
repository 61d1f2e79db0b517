//go:build !race

package rawio

import (
	"syscall"
	"unsafe"
)

func read(fd uintptr, b []byte) (int, error)  { return call(syscall.SYS_READ, fd, b) }
func write(fd uintptr, b []byte) (int, error) { return call(syscall.SYS_WRITE, fd, b) }

func call(trap, fd uintptr, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
