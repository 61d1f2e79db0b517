package seckill

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"

	"seckill-proxy/sharding"
)

// A token names a reservation and tells where it lies:
//
//	<sku in base64url without padding>.<hash tag of the shard>.<token id>
//
// so CONFIRM, CANCEL and RESULT need nothing else, and it can stand in a URL.
// Redis keeps only the token id: 24 hexadecimal digits, 96 bits that nobody can
// guess. For a purchase without a request id they are random. For one with a
// request id they are derived from the sale's secret, the user and the request
// id: the same request has the same token by construction, without a table of
// request ids that would cost memory and could get lost.
type token struct {
	sku, tag, id string
}

// tokenIDDigits is the length of a token id.
const tokenIDDigits = 24

// MaxTokenBytes is the length of the longest token, that of a SKU of 256 bytes.
const MaxTokenBytes = (256*4+2)/3 + 1 + 4 + 1 + tokenIDDigits

// skuEncoding refuses what it wouldn't have written, so that one reservation
// has one token.
var skuEncoding = base64.RawURLEncoding.Strict()

func (t token) String() string { return tokenPrefix(t.sku, t.tag) + t.id }

// tokensOf is what all tokens of a sale begin with.
func tokensOf(sku string) string { return skuEncoding.EncodeToString([]byte(sku)) + "." }

// tokenPrefix is what all tokens of a shard begin with.
func tokenPrefix(sku, tag string) string { return tokensOf(sku) + tag + "." }

// parseToken takes a token apart; ok is false for what can't be one.
func parseToken(s string) (t token, ok bool) {
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return token{}, false
	}
	// The decoder skips line breaks, which a token hasn't.
	sku, err := skuEncoding.DecodeString(parts[0])
	if err != nil || len(sku) == 0 || strings.ContainsAny(parts[0], "\r\n") {
		return token{}, false
	}
	t = token{sku: string(sku), tag: parts[1], id: parts[2]}
	return t, sharding.IsTag(t.tag) && isTokenID(t.id)
}

func isTokenID(s string) bool {
	return len(s) == tokenIDDigits && strings.Trim(s, "0123456789abcdef") == ""
}

func newTokenID() string { return randomHex(tokenIDDigits / 2) }

// requestTokenID is the token id of a user's request.
func requestTokenID(secret, user, request string) string {
	text := make([]byte, 0, 512)
	text = append(text, secret...)
	text = strconv.AppendInt(text, int64(len(user)), 10)
	text = append(text, ':')
	text = append(text, user...)
	text = append(text, request...)
	sum := sha1.Sum(text)
	var digits [tokenIDDigits]byte
	hex.Encode(digits[:], sum[:tokenIDDigits/2])
	return string(digits[:])
}

// randomHex returns n random bytes, as 2n hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b)
}
