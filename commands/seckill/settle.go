package seckill

import (
	"context"
	"encoding/json"
)

// Status is the state of a reservation.
type Status string

const (
	// Pending: its units are reserved, nothing is decided.
	Pending Status = "PENDING"
	// Confirmed: sold.
	Confirmed Status = "CONFIRMED"
	// Cancelled: its units were given back.
	Cancelled Status = "CANCELLED"
	// Expired: it wasn't settled in time, its units were given back.
	Expired Status = "EXPIRED"
)

// statuses are the states by the letters that order records have for them.
var statuses = map[string]Status{"P": Pending, "C": Confirmed, "X": Cancelled, "E": Expired}

// Settlement is the answer to Confirm and Cancel.
type Settlement struct {
	Outcome Outcome // Settled, Replayed, Conflict, NoSale or NoReservation
	Status  Status  // that stands, "" where there is no reservation
	OrderID string  // that stands, "" for one that isn't confirmed
}

// Confirm makes a pending reservation a sale under an order id of the shop.
// Asking again with the same order id is Replayed, with another one a Conflict.
func (s *Store) Confirm(ctx context.Context, token, orderID string) (Settlement, error) {
	return s.settle(ctx, token, "C", orderID, settledMessage(token, Confirmed, orderID))
}

// Cancel gives a pending reservation's units back, and the user's allowance.
// Asking again is Replayed, with whatever reason; the first reason stays.
func (s *Store) Cancel(ctx context.Context, token, reason string) (Settlement, error) {
	return s.settle(ctx, token, "X", reason, settledMessage(token, Cancelled, ""))
}

// settle brings a pending reservation into a state, by its letter; detail is
// the order id or the reason.
func (s *Store) settle(ctx context.Context, text, state, detail string, message []byte) (Settlement, error) {
	t, ok := parseToken(text)
	if !ok {
		return Settlement{Outcome: NoReservation}, nil
	}
	r := read(settleScript.Run(ctx, s.rdb, s.keys(t.sku, t.tag).all(), t.id, state, detail, s.ResultsChannel(), message))
	return Settlement{Outcome: Outcome(r.text()), Status: statuses[r.text()], OrderID: r.text()}, r.err
}

// settledMessage is what subscribers of the results channel are told.
func settledMessage(token string, status Status, orderID string) []byte {
	type data struct {
		Token   string `json:"token"`
		Status  Status `json:"status"`
		OrderID string `json:"order_id"`
	}
	message, err := json.Marshal(struct {
		Type string `json:"type"`
		Data data   `json:"data"`
	}{"seckill_result", data{token, status, orderID}})
	if err != nil {
		panic(err) // strings can always be marshalled
	}
	return message
}

// Reservation is the answer to Result.
type Reservation struct {
	Outcome Outcome // Found, NoSale or NoReservation
	Status  Status
	OrderID string // of a confirmed one
	Reason  string // of a cancelled one
}

// Result reads how a reservation stands.
func (s *Store) Result(ctx context.Context, text string) (Reservation, error) {
	t, ok := parseToken(text)
	if !ok {
		return Reservation{Outcome: NoReservation}, nil
	}
	keys := s.keys(t.sku, t.tag)
	r := read(resultScript.Run(ctx, s.rdb, []string{keys.sale, keys.orders}, t.id))
	return Reservation{Outcome: Outcome(r.text()), Status: statuses[r.text()], OrderID: r.text(), Reason: r.text()}, r.err
}
