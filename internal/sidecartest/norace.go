//go:build !race

package sidecartest

// RaceEnabled tells whether tests, and so the program under test, run with the
// race detector.
const RaceEnabled = false
