package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"

	"seckill-proxy/config"
	"seckill-proxy/upstream"
)

// check reports whether the upstream answers and is what the configuration says;
// that has been read and validated by now, but for the listeners' certificates.
func check(ctx context.Context, cfg config.Config, to opened, log *zap.Logger, stdout io.Writer) error {
	if _, err := clientTLS(cfg, log); err != nil {
		return err
	}
	locks, err := lockTargets(cfg, log)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "configuration: ok")
	fmt.Fprintln(stdout, cfg)
	return errors.Join(to.check(ctx, stdout), checkLockNodes(ctx, locks, stdout))
}

// check reports whether Redis answers, and who of those that say where it is. One
// of these that doesn't answer is no failure, a master of a cluster is one.
func (o opened) check(ctx context.Context, stdout io.Writer) error {
	if o.Cluster != nil {
		return o.checkCluster(ctx, stdout)
	}
	if o.sentinel != nil {
		for _, answer := range o.sentinel.Ask(ctx) {
			fmt.Fprintln(stdout, "sentinel:", answer)
		}
	}
	report, err := o.Target.Inquire(ctx)
	if err == nil {
		err = report.CheckSingle()
	}
	if err != nil {
		return fmt.Errorf("upstream: %w", err)
	}
	fmt.Fprintln(stdout, "upstream: ok:", report)
	return nil
}

// checkCluster reports on the seeds and the masters of a cluster.
func (o opened) checkCluster(ctx context.Context, stdout io.Writer) error {
	usable, strange := o.checkSeeds(ctx, stdout)
	if usable == 0 {
		return errors.Join(strange, errors.New("cluster: no seed answers as a node of a cluster"))
	}
	slots, err := o.Cluster.Map(ctx, o.Seed().Profile())
	if upstream.IsDenial(err) && o.password == "" { // clients bring their own
		fmt.Fprintln(stdout, "cluster: its masters aren't known without the credentials of a client:", err)
		if strange == nil {
			fmt.Fprintln(stdout, "upstream: ok: a node of the cluster answers")
		}
		return strange
	}
	if err != nil {
		return errors.Join(strange, fmt.Errorf("cluster: %w", err))
	}
	problems := []error{strange, checkSlots(slots)}
	for _, a := range inquire(ctx, slots.Masters()) {
		if a.err != nil {
			problems = append(problems, fmt.Errorf("master: %w", a.err))
			continue
		}
		fmt.Fprintf(stdout, "master: %v; its first slot is %d\n", a, slots.FirstSlot(a.target))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "upstream: ok: the cluster's masters answer, %d\n", len(slots.Masters()))
	return nil
}

// checkSeeds reports on each seed, and how many can be used. One is enough; one
// that is no node of a cluster is in the wrong place.
func (o opened) checkSeeds(ctx context.Context, stdout io.Writer) (usable int, strange error) {
	for _, a := range inquire(ctx, o.seeds) {
		switch {
		case a.err != nil:
			fmt.Fprintf(stdout, "seed: %v (no failure: one that answers is enough)\n", a)
		case a.CheckNode() != nil:
			strange = errors.Join(strange, fmt.Errorf("seed: %w", a.CheckNode()))
		default:
			usable++
			fmt.Fprintln(stdout, "seed:", a)
		}
	}
	return usable, strange
}

// checkSlots reports slots that no node serves.
func checkSlots(slots *upstream.SlotMap) error {
	if n, first := slots.Unserved(); n > 0 {
		return fmt.Errorf("cluster: %d slots aren't served, the first is %d", n, first)
	}
	return nil
}

// checkLockNodes reports on the independent lock servers, of which more than half
// are needed.
func checkLockNodes(ctx context.Context, nodes []*upstream.Target, stdout io.Writer) error {
	var problems []error
	usable := 0
	for _, a := range inquire(ctx, nodes) {
		switch {
		case a.err != nil:
			fmt.Fprintln(stdout, "lock.nodes:", a)
		case a.Barred:
			problems = append(problems, fmt.Errorf("lock.nodes: %v: want their password in its URL", a))
		case a.CheckSingle() != nil:
			problems = append(problems, fmt.Errorf("lock.nodes: %w", a.CheckSingle()))
		default:
			usable++
			fmt.Fprintln(stdout, "lock.nodes:", a)
		}
	}
	if 2*usable <= len(nodes) && len(nodes) > 0 {
		problems = append(problems, fmt.Errorf("lock.nodes: %d of %d can be used, more than half are needed", usable, len(nodes)))
	}
	return errors.Join(problems...)
}

// inquiry is what became of asking a server what it is.
type inquiry struct {
	upstream.Report
	target *upstream.Target
	err    error
}

// String says whether it answers.
func (a inquiry) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return a.Report.String()
}

// inquire asks servers what they are, all at the same time.
func inquire(ctx context.Context, targets []*upstream.Target) []inquiry {
	answers := make([]inquiry, len(targets))
	var asking sync.WaitGroup
	for i, target := range targets {
		asking.Go(func() {
			report, err := target.Inquire(ctx)
			answers[i] = inquiry{report, target, err}
		})
	}
	asking.Wait()
	return answers
}

// inquireEvery is how long a server that doesn't answer is left alone.
const inquireEvery = time.Second

// warn tells the log once when Redis isn't what the configuration says, as soon as
// it answers, or when ctx ends. All that clients would see are commands that fail.
func (o opened) warn(ctx context.Context, log *zap.Logger) {
	for told := false; ; told = true {
		known, err := o.fits(ctx)
		switch {
		case known && err != nil:
			log.Warn("upstream.url is wrong: commands will fail", zap.Error(err))
			return
		case known:
			return
		case !told && ctx.Err() == nil:
			log.Warn("Redis can't be asked yet what it is", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(inquireEvery):
		}
	}
}

// fits returns why Redis isn't what the configuration says, or why that isn't known.
func (o opened) fits(ctx context.Context) (known bool, why error) {
	if o.Cluster != nil {
		_, err := o.Cluster.Map(ctx, o.Seed().Profile())
		if upstream.IsDenial(err) && o.password == "" {
			return true, nil // clients bring their own
		}
		return err == nil || upstream.IsDenial(err) || upstream.IsStranger(err), err
	}
	report, err := o.Target.Inquire(ctx)
	if err == nil {
		return true, report.CheckSingle()
	}
	return upstream.IsLasting(err), err
}

// warnOpen tells the log of listeners that let anybody in.
func warnOpen(cfg config.Config, log *zap.Logger) {
	for _, a := range cfg.Open() {
		log.Warn("whoever reaches this listener is served as Redis serves the sidecar itself, which Redis's protected-mode doesn't see: "+
			"set listen_password, or listen on a loopback address or a unix socket", zap.Stringer("listen", a))
	}
}
