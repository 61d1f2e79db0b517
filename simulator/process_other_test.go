//go:build !linux

package simulator

import "os/exec"

// dieWithParent does nothing: only Linux can do it.
func dieWithParent(*exec.Cmd) {}
