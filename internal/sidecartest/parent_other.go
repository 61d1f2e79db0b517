//go:build !linux

package sidecartest

import "os/exec"

// dieWithParent does nothing: only Linux can do it.
func dieWithParent(*exec.Cmd) {}
