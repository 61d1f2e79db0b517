//go:build !linux || race

package rawio

import "syscall"

// The race detector has to see the calls: what is written before what is read.

func read(fd uintptr, b []byte) (int, error) { return atLeast0(syscall.Read(int(fd), b)) }

func write(fd uintptr, b []byte) (int, error) { return atLeast0(syscall.Write(int(fd), b)) }

func atLeast0(n int, err error) (int, error) { return max(n, 0), err }
