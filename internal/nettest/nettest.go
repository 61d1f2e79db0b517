// Package nettest gives tests both ends of a connection, and servers that are
// what the test says.
package nettest

import (
	"bufio"
	"net"
	"sync"
	"testing"
)

// Pair returns both ends of a TCP connection, which the end of the test closes.
func Pair(t testing.TB) (here, there *net.TCPConn) {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		accepted.Close()
	})
	return accepted.(*net.TCPConn), conn.(*net.TCPConn)
}

// Serve starts a server that serves each connection with serve and closes it
// then. stop, which the end of the test calls too, ends it and waits until no
// serve is running.
func Serve(t testing.TB, serve func(conn net.Conn, rd *bufio.Reader)) (addr string, stop func()) {
	t.Helper()
	ln := listen(t)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn, bufio.NewReader(conn))
			})
		}
	})
	stop = func() {
		ln.Close()
		running.Wait()
	}
	t.Cleanup(stop)
	return ln.Addr().String(), stop
}

// Dead returns an address at which nobody listens.
func Dead(t testing.TB) string {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	return ln.Addr().String()
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}
