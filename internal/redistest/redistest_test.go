package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// crashVariable makes the test binary start a server, print its address and
// wait for its own end.
const crashVariable = "REDISTEST_CRASH"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestKillAndRestartKeepWhatWasAnswered(t *testing.T) {
	s := Start(t, Options{AppendOnly: true})
	client := s.Client(t)
	ctx := context.Background()
	if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}

	s.Kill()
	if err := client.Ping(ctx).Err(); err == nil {
		t.Fatal("a killed server answered PING")
	}

	addr, pid := s.Addr, s.PID()
	s.Restart()
	if s.Addr != addr || s.PID() == pid {
		t.Fatalf("restarted as %s, process %d; was %s, process %d", s.Addr, s.PID(), addr, pid)
	}
	if got, err := client.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Fatalf("after the restart: GET k = %q, %v; want v", got, err)
	}
}

func TestRestartOfARunningServerWithoutFileIsEmpty(t *testing.T) {
	s := Start(t, Options{})
	client := s.Client(t)
	ctx := context.Background()
	if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if n, err := client.DBSize(ctx).Result(); err != nil || n != 0 {
		t.Fatalf("DBSIZE = %d, %v; want 0", n, err)
	}
}

func TestPausedServerAnswersAfterResume(t *testing.T) {
	s := Start(t, Options{})
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := make(chan string)
	go func() {
		defer close(answers)
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			answers <- lines.Text()
		}
	}()

	s.Pause()
	s.Pause()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	// However slow the machine, nothing can come: the server has stopped. The
	// wait gives a wrong answer a chance to show.
	select {
	case got := <-answers:
		t.Fatalf("a paused server answered %q", got)
	case <-time.After(50 * time.Millisecond):
	}
	s.Resume()
	if got := <-answers; got != "+PONG" {
		t.Fatalf("after Resume: %q, want +PONG", got)
	}
	s.Kill()
	if _, open := <-answers; open {
		t.Fatal("the connection outlived the server")
	}
}

func TestArgsReachTheServer(t *testing.T) {
	s := Start(t, Options{Args: []string{"--requirepass", "s p", "--maxmemory", "10mb"}})
	ctx := context.Background()
	err := s.Client(t).Ping(ctx).Err()
	if err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
		t.Fatalf("PING without the password: %v, want NOAUTH", err)
	}
	conn := s.Client(t).Conn()
	defer conn.Close()
	if err := conn.Auth(ctx, "s p").Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := conn.ConfigGet(ctx, "maxmemory").Result(); err != nil || got["maxmemory"] != "10485760" {
		t.Fatalf("maxmemory = %v, %v; want 10485760", got, err)
	}
}

func TestPortTakenMeanwhileIsRecognised(t *testing.T) {
	taken := Start(t, Options{})
	s := &Server{Addr: taken.Addr, Port: taken.Port, Dir: t.TempDir(), t: t, binary: taken.binary}
	if err := s.start(); !errors.Is(err, errAddressInUse) {
		t.Fatalf("start on a taken port: %v, want errAddressInUse", err)
	}
}

func TestServerDiesWithTheTestBinary(t *testing.T) {
	if os.Getenv(crashVariable) != "" {
		s := Start(t, Options{})
		fmt.Println("server", s.Addr)
		select {}
	}
	victim := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheTestBinary$", "-test.timeout=5m")
	victim.Env = append(os.Environ(), crashVariable+"=1", "TMPDIR="+t.TempDir())
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		addr, _ = strings.CutPrefix(lines.Text(), "server ")
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed
	// The connection ends when the server's process does.
	if err := conn.SetReadDeadline(time.Now().Add(readyTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the server outlived the test binary: %v", err)
	}
}
