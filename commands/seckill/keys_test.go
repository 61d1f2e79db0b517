package seckill

import (
	"strings"
	"testing"

	"seckill-proxy/sharding"
)

// All keys of a shard must lie in the slot that its tag names, or a cluster
// refuses the scripts.
func TestKeysOfAShardShareItsSlot(t *testing.T) {
	s := New(nil, Options{Prefix: "shop:sale:"})
	for _, sku := range []string{"sku", "a}b{", "{}", "}{", "用户", "\x00", strings.Repeat("{", 256)} {
		for shard := range 10 {
			want := sharding.ShardSlot(sku, shard, 10)
			for _, key := range s.keys(sku, shardTag(sku, shard, 10)).all() {
				equal(t, key, sharding.Slot(key), want)
				if !strings.HasPrefix(key, "shop:sale:{") || !strings.HasSuffix(key, ":"+sku) {
					t.Errorf("key %q of sku %q", key, sku)
				}
			}
		}
	}
}

func TestTokenTellsWhereItsReservationLies(t *testing.T) {
	for _, sku := range []string{"s", "sku", "a}b{", "用户", "\x00\xff", strings.Repeat("x", 254), strings.Repeat("x", 255), strings.Repeat("x", 256)} {
		for slot := 0; slot < sharding.Slots; slot += 97 {
			want := token{sku: sku, tag: sharding.Tag(slot), id: newTokenID()}
			text := want.String()
			got, ok := parseToken(text)
			if !ok || got != want {
				t.Fatalf("%q: %+v, %v, want %+v", text, got, ok, want)
			}
			if len(text) > MaxTokenBytes || strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
				t.Fatalf("token %q of %d bytes", text, len(text))
			}
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("c2t1.7c5.b27cbf17237a2fe2ee3344cd")
	f.Add("c2t1..")
	f.Fuzz(func(t *testing.T, text string) {
		// One reservation, one token: what is accepted is what would be written.
		if parsed, ok := parseToken(text); ok && parsed.String() != text {
			t.Errorf("%q is taken for %q", text, parsed)
		}
	})
}
