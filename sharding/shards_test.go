package sharding

import (
	"fmt"
	"slices"
	"testing"
)

func TestShardSlotsAreEvenlySpaced(t *testing.T) {
	for shards := 1; shards <= 128; shards++ {
		first := ShardSlot("iphone", 0, shards)
		for shard := range shards {
			next := first + Slots // the circle closes behind the last shard
			if shard+1 < shards {
				next = ShardSlot("iphone", shard+1, shards)
			}
			gap := ((next-ShardSlot("iphone", shard, shards))%Slots + Slots) % Slots
			if shards == 1 {
				gap = Slots
			}
			if least := Slots / shards; gap != least && gap != least+1 {
				t.Errorf("%d shards: %d slots between shard %d and the next, want %d or one more", shards, gap, shard, least)
			}
		}
	}
}

// Masters that own equal parts of the slots get equally many shards of every sale.
// One more or less is only what rounding does where a shard lies on a border.
func TestShardsAreSpreadEvenlyOverMasters(t *testing.T) {
	const skus = 20
	sales, rounded := 0, 0
	for _, masters := range []int{1, 2, 3, 5, 6, 12, 16} {
		for shards := 1; shards <= 128; shards++ {
			least, most := shards/masters, (shards+masters-1)/masters
			for sku := range skus {
				has := make([]int, masters)
				for shard := range shards {
					has[ShardSlot(fmt.Sprint("sku", sku), shard, shards)*masters/Slots]++
				}
				fewest, fullest := slices.Min(has), slices.Max(has)
				if fewest < least-1 || fullest > most+1 {
					t.Fatalf("%d shards of sale %d on %d masters: %v", shards, sku, masters, has)
				}
				if sales++; fewest < least || fullest > most {
					rounded++
				}
			}
		}
	}
	if rounded*100 > sales {
		t.Errorf("%d of %d sales are unevenly spread", rounded, sales)
	}
}

// Not all sales begin on the same master.
func TestSalesBeginAnywhere(t *testing.T) {
	const sales, parts = 16_000, 16
	var has [parts]int
	for sale := range sales {
		has[ShardSlot(fmt.Sprint("sku", sale), 0, 1)*parts/Slots]++
	}
	for part, n := range has {
		if n < sales/parts*8/10 || n > sales/parts*12/10 {
			t.Errorf("%d of %d sales begin in part %d of %d", n, sales, part, parts)
		}
	}
}

// Where a sale is looked up doesn't depend on how many shards it has.
func TestShardZeroIsWhereItIs(t *testing.T) {
	for shards := 1; shards <= 128; shards++ {
		if ShardSlot("iphone", 0, shards) != ShardSlot("iphone", 0, 1) {
			t.Fatalf("shard 0 of %d lies elsewhere", shards)
		}
	}
}

func TestShardSlotUsesAllBytesOfTheSKU(t *testing.T) {
	if ShardSlot("{a}1", 0, 1) == ShardSlot("{a}2", 0, 1) {
		t.Error("skus that differ only outside of braces share their slot")
	}
}

func TestShardSlotOfShardOutOfRangePanics(t *testing.T) {
	for _, shard := range []int{-1, 4} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("ShardSlot of shard %d of 4 returned", shard)
				}
			}()
			ShardSlot("sku", shard, 4)
		}()
	}
}

func TestHomeShardsAreEvenlyUsed(t *testing.T) {
	const users, shards = 100_000, 10
	for _, format := range []string{"%d", "user%08d", "%d@example.com", "用户%d"} {
		var used [shards]int
		for i := range users {
			used[HomeShard(fmt.Sprintf(format, i), shards)]++
		}
		for shard, n := range used {
			if n < users/shards*9/10 || n > users/shards*11/10 {
				t.Errorf("users like %q: shard %d is home of %d of %d", format, shard, n, users)
			}
		}
	}
}

// The mapping is part of what is stored: a sidecar of a later version must find
// the reservations of an earlier one.
func TestHomeShardAndShardSlotStayAsTheyAre(t *testing.T) {
	if got := HomeShard("9007199254740993", 10); got != 9 {
		t.Errorf("HomeShard = %d", got)
	}
	if got := ShardSlot("iphone", 3, 10); got != 2116 {
		t.Errorf("ShardSlot = %d", got)
	}
}

func TestIsTag(t *testing.T) {
	for slot := range Slots {
		if !IsTag(Tag(slot)) {
			t.Fatalf("Tag(%d) isn't a tag", slot)
		}
	}
	for _, not := range []string{"", "zzzzz", "A", "{1}", "-1", "01"} {
		if IsTag(not) {
			t.Errorf("%q is taken for a tag", not)
		}
	}
}
