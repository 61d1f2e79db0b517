//go:build !linux

package redistest

import "os/exec"

// dieWithParent does nothing where the system can't tie a process to its
// parent: a test binary that crashes leaves its servers behind.
func dieWithParent(*exec.Cmd) {}

// waitStopped doesn't wait: other systems stop a process before kill returns,
// or soon after.
func waitStopped(int) error { return nil }
