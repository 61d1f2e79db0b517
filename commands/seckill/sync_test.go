package seckill

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"seckill-proxy/internal/redistest"
)

// replicated starts a Redis with a replica that is up to date.
func replicated(t *testing.T) (master, replica *redistest.Server) {
	master = redistest.Start(t, redistest.Options{})
	return master, redistest.StartReplica(t, master, redistest.Options{})
}

// On the replica the purchase is there when it has been answered.
func TestSyncMeansOnTheReplica(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	rdb := connect(t, master.Addr)
	ctx, s := t.Context(), newQuietStore(t, rdb, Options{SyncTimeout: time.Minute})
	sell(t, s, Sale{SKU: "sku", Stock: 100, Limit: 0, Shards: 3})
	copied := newQuietStore(t, connect(t, replica.Addr), Options{})
	for _, p := range []Purchase{
		{SKU: "sku", User: "u", Qty: 1, Sync: 1},
		{SKU: "sku", User: "u", Qty: 1, Sync: 1, RequestID: "r"},
		{SKU: "sku", User: "u", Qty: 60, Sync: 1}, // with units of other shards
	} {
		receipt := must[Receipt](t)(s.Buy(ctx, p))
		equal(t, "outcome", receipt.Outcome, Reserved)
		equal(t, "on the replica", must[Reservation](t)(copied.Result(ctx, receipt.Token)).Status, Pending)
	}
	equal(t, "again", must[Receipt](t)(s.Buy(ctx, Purchase{SKU: "sku", User: "u", Qty: 1, Sync: 1, RequestID: "r"})).Outcome, Replayed)
	clean(t, s, "sku")
}

func TestSyncThatIsNotMet(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	rdb := connect(t, master.Addr)
	ctx := t.Context()
	impatient, patient := newListeningStore(t, rdb, Options{SyncTimeout: time.Millisecond}), newQuietStore(t, rdb, Options{SyncTimeout: time.Minute})
	create(t, patient, Sale{SKU: "sku", Stock: 3, Limit: 1})
	p := Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r", Sync: 1}

	replica.Pause()
	first := must[Receipt](t)(impatient.Buy(ctx, p))
	equal(t, "while it is paused", first, Receipt{Outcome: Uncertain, Token: first.Token, Left: 2})
	equal(t, "asked again", must[Receipt](t)(impatient.Buy(ctx, p)), first)
	elsewhere := newQuietStore(t, connect(t, master.Addr), Options{SyncTimeout: time.Millisecond}) // on a connection that has written nothing
	equal(t, "asked again elsewhere", must[Receipt](t)(elsewhere.Buy(ctx, p)), first)
	p.Sync = 0
	equal(t, "by whom that is enough", must[Receipt](t)(impatient.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: first.Token, Left: 2})
	replica.Resume()
	p.Sync = 1
	equal(t, "when it is back", must[Receipt](t)(patient.Buy(ctx, p)), Receipt{Outcome: Replayed, Token: first.Token, Left: 2})

	p = Purchase{SKU: "sku", User: "v", Qty: 1, Sync: 2}
	receipt := must[Receipt](t)(impatient.Buy(ctx, p))
	equal(t, "more than there are", receipt, Receipt{Outcome: Uncertain, Token: receipt.Token, Left: 1})

	// A refusal needs no replica, and who holds units and asks for replicas isn't
	// answered from memory.
	equal(t, "a refusal", must[Receipt](t)(impatient.Buy(ctx, p)), Receipt{Outcome: LimitReached, Token: receipt.Token, Left: 1})
	reserve(t, impatient, Purchase{SKU: "sku", User: "w", Qty: 1})
	eventually(t, "the flag", func() bool { turnedAway(t, impatient, "sku"); return flags(impatient) == 1 })
	refusal, certain := impatient.Certain(Purchase{SKU: "sku", User: "stranger", Qty: 1, Sync: 5})
	equal(t, "to a stranger", certain, true)
	equal(t, "to a stranger", refusal, Receipt{Outcome: SoldOut})
	p = Purchase{SKU: "sku", User: "u", Qty: 1, RequestID: "r", Sync: 5}
	_, certain = impatient.Certain(p)
	equal(t, "to a buyer", certain, false)
	equal(t, "sold out", must[Receipt](t)(impatient.Buy(ctx, p)), Receipt{Outcome: Uncertain, Token: first.Token})
	equal(t, "pending", clean(t, patient, "sku").Pending, 3)
}

func TestSyncByDefault(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb *redis.Client) {
		s := newQuietStore(t, rdb, Options{SyncReplicas: 1, SyncTimeout: time.Millisecond})
		create(t, newQuietStore(t, rdb, Options{}), Sale{SKU: "sku", Stock: 3, Limit: 1})
		for _, c := range []struct {
			sync int
			want Outcome
		}{{-1, Uncertain}, {0, Reserved}, {1, Uncertain}} {
			receipt := must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sku", User: newTokenID(), Qty: 1, Sync: c.sync}))
			equal(t, "outcome", receipt.Outcome, c.want)
			equal(t, "result", must[Reservation](t)(s.Result(t.Context(), receipt.Token)).Status, Pending)
		}
		equal(t, "sold out", must[Receipt](t)(s.Buy(t.Context(), Purchase{SKU: "sku", User: "u", Qty: 1, Sync: -1})), Receipt{Outcome: SoldOut})
		clean(t, s, "sku")
	})
}
