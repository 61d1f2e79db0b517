package sharding

import "testing"

func TestSlotFollowsTheClusterSpecification(t *testing.T) {
	// Right values from CLUSTER KEYSLOT of redis-server 7.0.15.
	for key, want := range map[string]int{
		"":                     0,
		"123456789":            12739,
		"foo":                  12182,
		"{foo}bar":             12182,
		"{user1000}.following": 3443,
		"foo{}{bar}":           8363,
		"foo{{bar}}zap":        4015,
		"foo{bar}{zap}":        5061,
		"a}b{":                 6027,
		"lock:用户":              12457,
	} {
		got := Slot(key)
		if got != want {
			t.Errorf("Slot(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestTagLivesInItsSlot(t *testing.T) {
	for slot := range Slots {
		tag := Tag(slot)
		if len(tag) == 0 || len(tag) > 4 {
			t.Fatalf("Tag(%d) = %q: want 1 to 4 characters", slot, tag)
		}
		if key := "any:{" + tag + "}:a}b{c"; Slot(key) != slot {
			t.Fatalf("%q lives in slot %d, want %d", key, Slot(key), slot)
		}
	}
}
