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
	Outcome Outcome // Settled, Replayed, Conflict, Lapsed, NoSale or NoReservation
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
	s.Start()
	t, ok := parseToken(text)
	if !ok {
		return Settlement{Outcome: NoReservation}, nil
	}
	answer, replicas, err := s.runSynced(ctx, settleScript, s.SyncReplicas, s.keys(t.sku, t.tag).all(), t.id, state, detail,
		s.ResultsChannel(), message, s.eventsChannel(), event(eventStock, t.sku), tokenPrefix(t.sku, t.tag), flag(s.SyncReplicas > 0))
	r := read(answer, err)
	settlement := Settlement{Outcome: Outcome(r.text()), Status: statuses[r.text()], OrderID: r.text()}
	if settlement.Outcome == Lapsed || settlement.Outcome == Settled && settlement.Status == Cancelled {
		s.cache.Event(t.sku) // without waiting for what was published
	}
	if r.err == nil && settlement.stands() {
		r.err = s.unlessSynced(replicas)
	}
	return settlement, r.err
}

// stands reports whether the reservation is told to be what was asked for, or to
// have expired, and may not become anything else.
func (s Settlement) stands() bool {
	return s.Status == Confirmed || s.Status == Cancelled || s.Status == Expired
}

// settled is what subscribers of the results channel are told.
type settled struct {
	Type string `json:"type"` // settledType
	Data struct {
		Token   string `json:"token"`
		Status  Status `json:"status"`
		OrderID string `json:"order_id"`
	} `json:"data"`
}

const settledType = "seckill_result"

func settledMessage(token string, status Status, orderID string) []byte {
	message := settled{Type: settledType}
	message.Data.Token, message.Data.Status, message.Data.OrderID = token, status, orderID
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // strings can always be marshalled
	}
	return text
}
