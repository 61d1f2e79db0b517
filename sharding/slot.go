// Package sharding is the pure arithmetic of where a key lives: key to Redis
// Cluster slot, slot to hash tag, SKU to the slots of its shards, user to its
// home shard. It knows no connection and no configuration.
package sharding

import (
	"strconv"
	"sync"
)

// Slots is the number of hash slots of a Redis Cluster.
const Slots = 16384

// Slot returns the Redis Cluster hash slot (0 to Slots-1) of a key: CRC16 of
// its hash tag where it has one, else of the whole key. The tag is what stands
// between the first '{' and the first '}' after it, when that isn't empty
// (Redis Cluster specification, "Hash tags").
func Slot(key string) int {
	return int(crc16(hashTag(key))) % Slots
}

// hashTag returns the part of a key that Redis Cluster hashes.
func hashTag(key string) string {
	for i := 0; i < len(key); i++ {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j == i+1 {
					return key
				}
				return key[i+1 : j]
			}
		}
		return key
	}
	return key
}

// Tag returns the hash tag (without braces) that stands for a slot: the
// smallest number, written in base 36, whose own slot it is. A key that starts
// with "prefix{" + Tag(slot) + "}" lives in that slot whatever follows, so any
// bytes can follow. Tags have one to four characters of 0-9 and a-z. It panics
// when slot isn't in 0 to Slots-1.
func Tag(slot int) string {
	return tags()[slot]
}

// tags is the table behind Tag, made once: some 170,000 CRCs of four bytes.
var tags = sync.OnceValue(func() *[Slots]string {
	var table [Slots]string
	for n, missing := int64(0), Slots; missing > 0; n++ {
		tag := strconv.FormatInt(n, 36)
		if slot := Slot(tag); table[slot] == "" {
			table[slot] = tag
			missing--
		}
	}
	return &table
})

// crc16 is the CRC-16/XMODEM of the Redis Cluster specification: polynomial
// 0x1021, initial value 0, nothing reflected.
func crc16(s string) uint16 {
	var crc uint16
	for i := 0; i < len(s); i++ {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
