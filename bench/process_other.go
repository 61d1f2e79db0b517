//go:build !linux

package main

import "os/exec"

// dieWithParent does nothing: only Linux has this. Measuring needs Linux too,
// for /proc.
func dieWithParent(*exec.Cmd) {}
