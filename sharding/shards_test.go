package sharding

import (
	"fmt"
	"testing"
)

func TestShardSlotsAreEvenlySpaced(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 10, 64, 1000} {
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
