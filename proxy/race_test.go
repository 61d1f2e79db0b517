//go:build race

package proxy_test

// crossingClients is smaller with the race detector, which makes everything slower.
const crossingClients = 300
