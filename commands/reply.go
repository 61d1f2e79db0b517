package commands

// Reply is a RESP value in Go: an int or int64 (integer), a string or []byte
// (bulk string), a Status (simple string), an Array, a Map or an Error. There
// is no nil: what doesn't apply is "" or 0, since clients turn nil into false.
type Reply any

// Array is a RESP array.
type Array []Reply

// Map holds keys and values in turn. It is a map over RESP3 and a flat array
// over RESP2.
type Map []Reply

// Status is a RESP simple string. Business outcomes never use it.
type Status string

// Error is a RESP error without its leading '-': "ERR syntax error". It tells
// of misuse, or repeats what Redis itself answered; business outcomes never use
// it.
type Error string

// Codes of business outcomes: those that a shop's HTTP API returns anyway, and
// a family of its own for a sale that says no.
const (
	CodeDone       = 200  // done
	CodeUncertain  = 202  // done here but not on the replicas asked for, or outcome unknown
	CodeNotYours   = 403  // somebody else holds it
	CodeNotFound   = 404  // no such thing
	CodeTimeout    = 408  // waited in vain
	CodeConflict   = 409  // busy, or in another state
	CodeExpired    = 410  // was yours, lapsed
	CodeTooFast    = 429  // rate limit
	CodeNotTried   = 503  // not executed, try later
	CodeSoldOut    = 4001 // no unit left
	CodeLimit      = 4002 // the user has what one user may have
	CodeSaleClosed = 4003 // sale not open
)
