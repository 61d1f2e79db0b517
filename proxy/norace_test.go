//go:build !race

package proxy_test

const crossingClients = 1500
