package main

import (
	"fmt"
	"slices"
)

// spread sums up the values of a measure, one for each round.
type spread struct {
	median, min, max float64
}

// spreadOf wants at least one value.
func spreadOf(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	middle, last := len(sorted)/2, len(sorted)-1
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{median: median, min: sorted[0], max: sorted[last]}
}

// format writes "median (min–max)" with so many decimals, and the median alone
// when there is nothing to spread.
func (s spread) format(decimals int) string {
	if s.min == s.max {
		return fmt.Sprintf("%.*f", decimals, s.median)
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", decimals, s.median, decimals, s.min, decimals, s.max)
}

// each applies a measure to the samples of all rounds.
func each(samples []sample, measure func(sample) float64) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = measure(s)
	}
	return values
}

// within combines a measure of two contenders, round by round.
func within(a, b []sample, measure func(sample) float64, combine func(a, b float64) float64) []float64 {
	values := make([]float64, min(len(a), len(b)))
	for i := range values {
		values[i] = combine(measure(a[i]), measure(b[i]))
	}
	return values
}

// Measures and combinations.

func throughput(s sample) float64 { return s.throughput }
func proxyCPU(s sample) float64   { return s.proxyCPU }
func redisCPU(s sample) float64   { return s.redisCPU }
func p50(s sample) float64        { return s.p50 }
func commands(s sample) float64   { return s.commands }

func ratio(a, b float64) float64      { return a / b }
func difference(a, b float64) float64 { return a - b }
