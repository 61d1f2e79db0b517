package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"

	"seckill-proxy/internal/resp"
)

// SentinelOptions say which sentinels know the master.
type SentinelOptions struct {
	Addresses []string // "host:port" of each, at least one
	Master    string   // what they call it
	User      string   // of the sentinels themselves, "" for their default user
	Password  string   // "" where they demand none

	Every time.Duration // how often each is asked, beside when there is a reason to; 0 for a second
}

// Sentinel keeps a Target at the master that sentinels name. It asks each of them
// every now and then, and at once when one tells of a new master, or when
// something speaks against the known one. So a master that was demoted is left
// within a second even where nobody told. (To ask that master's ROLE instead
// would find less: one that is cut off from the sentinels still takes itself for
// the master.)
//
// Sentinels hear of a failover one after the other, and one that was away still
// names the old master. So the newest configuration counts, by the epoch that
// sentinels number them with, and one that isn't newer than the known one only
// counts when all sentinels name it, as they do when they were all set up anew.
// While none answers, the master that is known stays.
type Sentinel struct {
	target  *Target
	name    string
	every   time.Duration
	asked   []*asked
	end     context.CancelFunc
	running sync.WaitGroup // two goroutines for each sentinel
	known   chan struct{}  // closed when there is a master
	tried   chan struct{}  // closed when there is one, or each sentinel was asked

	mu      sync.Mutex
	rank    int64  // of the answer that the target is at; -1 for none yet
	trouble string // what the log says of sentinels that all don't help; "" when one does
}

// asked is one sentinel.
type asked struct {
	address string
	client  *redis.SentinelClient
	again   chan struct{} // has an element when it is to be asked at once

	answer *SentinelAnswer // the latest, nil before the first; Sentinel.mu guards it
}

// SentinelAnswer is what one sentinel said when it was asked for the master.
type SentinelAnswer struct {
	Sentinel string // its address
	Master   string // the master's, "" with Err
	Epoch    int64  // of the configuration in which that is the master
	Err      error

	// settled tells that the sentinel has no failover to end. While it has, it
	// names the replica that it promoted, even if that died meanwhile and the
	// others have a newer configuration, whose epoch it shows.
	settled bool
}

// String is a line of -check.
func (a SentinelAnswer) String() string {
	switch {
	case a.Err == nil:
		return a.Sentinel + " names " + a.Master
	case redis.HasErrorPrefix(a.Err, "unknown command"):
		return fmt.Sprintf("%s is no sentinel: %v", a.Sentinel, a.Err)
	case IsDenial(a.Err):
		return fmt.Sprintf("%s: %v; upstream.sentinel_user and upstream.sentinel_password are for the sentinels", a.Sentinel, a.Err)
	}
	return fmt.Sprintf("%s: %v", a.Sentinel, a.Err)
}

// rank orders answers by how new they are.
func (a SentinelAnswer) rank() int64 {
	if a.settled {
		return 2*a.Epoch + 1
	}
	return 2 * a.Epoch
}

// askPause is the least time between two questions to a sentinel.
const askPause = 50 * time.Millisecond

// StartSentinel returns a Target that is wherever the master is, and what keeps
// it there; the caller closes that, after everything that uses the Target.
// opts.Address is of no meaning, the rest is what Redis is reached with; TLS is
// for the sentinels too. Until sentinels were asked, connecting waits.
func StartSentinel(opts Options, which SentinelOptions) (*Target, *Sentinel) {
	opts.Address = "the master " + which.Master
	target := New(opts)
	ctx, end := context.WithCancel(context.Background())
	s := &Sentinel{
		target: target,
		name:   which.Master,
		every:  cmp.Or(which.Every, time.Second),
		end:    end,
		known:  make(chan struct{}),
		tried:  make(chan struct{}),
		rank:   -1,
	}
	target.where.address, target.sentinel = "", s
	for _, address := range which.Addresses {
		s.asked = append(s.asked, &asked{address: address, client: s.client(address, which), again: make(chan struct{}, 1)})
	}
	for _, a := range s.asked {
		s.running.Go(func() { s.keepAsking(ctx, a) })
		s.running.Go(func() { s.keepListening(ctx, a) })
	}
	return target, s
}

// Close ends the questions. The Target stays where it is.
func (s *Sentinel) Close() {
	s.end()
	s.running.Wait()
	for _, a := range s.asked {
		a.client.Close()
	}
}

// Ask asks each sentinel once, for -check.
func (s *Sentinel) Ask(ctx context.Context) []SentinelAnswer {
	answers := make([]SentinelAnswer, len(s.asked))
	var asking sync.WaitGroup
	for i, a := range s.asked {
		asking.Go(func() { answers[i] = s.ask(ctx, a) })
	}
	asking.Wait()
	return answers
}

func (s *Sentinel) client(address string, which SentinelOptions) *redis.SentinelClient {
	timeout := s.target.opts.DialTimeout
	return redis.NewSentinelClient(&redis.Options{
		Addr:     address,
		Username: which.User,
		Password: which.Password,
		Protocol: 2,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return s.target.secure(ctx, conn, address)
		},
		MaxRetries:      -1,
		DialerRetries:   1,
		DialTimeout:     timeout,
		ReadTimeout:     timeout,
		WriteTimeout:    timeout,
		PoolSize:        100, // two are used; after so many failures go-redis tries only once in a second
		DisableIdentity: true,

		ContextTimeoutEnabled:    true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// doubt has all sentinels asked soon. It doesn't wait.
func (s *Sentinel) doubt() {
	for _, a := range s.asked {
		select {
		case a.again <- struct{}{}:
		default:
		}
	}
}

// await waits until a master is known. Without one, it fails when all sentinels
// were asked, or ctx ends.
func (s *Sentinel) await(ctx context.Context) error {
	select {
	case <-s.tried:
	case <-ctx.Done():
	}
	select {
	case <-s.known:
		return nil
	default:
		return s.unknown()
	}
}

// unknown says why no master is known.
func (s *Sentinel) unknown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("%s: %s", s.verdict("it"), s.excuses())
}

// verdict says what sentinels have in common that all don't name the master. It is
// called with the lock held.
func (s *Sentinel) verdict(master string) string {
	said, strange := 0, 0
	for _, a := range s.asked {
		var answered redis.Error
		if a.answer != nil && errors.As(a.answer.Err, &answered) {
			said++
			if !redis.HasErrorPrefix(answered, "No such master") {
				strange++
			}
		}
	}
	switch {
	case said == 0:
		return "no sentinel answers"
	case strange == 0:
		return "no sentinel knows " + master
	}
	return "no sentinel names " + master
}

// excuses are what the sentinels said instead. It is called with the lock held.
func (s *Sentinel) excuses() string {
	var each []string
	for _, a := range s.asked {
		switch {
		case a.answer == nil:
			each = append(each, a.address+": no answer yet")
		case a.answer.Err != nil:
			each = append(each, a.answer.String())
		}
	}
	return strings.Join(each, "; ")
}

// keepAsking asks one sentinel again and again until ctx ends.
func (s *Sentinel) keepAsking(ctx context.Context, a *asked) {
	for {
		answer := s.ask(ctx, a)
		if ctx.Err() != nil {
			return
		}
		s.take(a, answer)
		if !idle(ctx, askPause, nil) || !idle(ctx, s.every, a.again) {
			return
		}
	}
}

// idle waits for d, or until something comes from sooner. It reports whether ctx
// goes on.
func idle(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-sooner:
	}
	return true
}

// ask asks one sentinel for the master and the epoch of its configuration. The
// epoch comes first: were there a failover in between, the new address would have
// an old epoch, which is believed less than it could be, and not an old address a
// new one.
func (s *Sentinel) ask(ctx context.Context, a *asked) SentinelAnswer {
	ctx, cancel := context.WithTimeout(ctx, s.target.opts.DialTimeout)
	defer cancel()
	failed := func(err error) SentinelAnswer {
		return SentinelAnswer{Sentinel: a.address, Err: s.target.hint(err)}
	}
	details, err := a.client.Master(ctx, s.name).Result()
	if err != nil {
		return failed(err)
	}
	epoch, err := strconv.ParseInt(details["config-epoch"], 10, 64)
	if err != nil {
		return failed(fmt.Errorf("config-epoch of %s: %w", s.name, err))
	}
	// The details name the old master until all replicas know the new one.
	at, err := a.client.GetMasterAddrByName(ctx, s.name).Result()
	if err != nil {
		return failed(err)
	}
	if len(at) != 2 {
		return failed(fmt.Errorf("address of %s: %d words, want a host and a port", s.name, len(at)))
	}
	settled := at[0] == details["ip"] && at[1] == details["port"]
	return SentinelAnswer{Sentinel: a.address, Master: net.JoinHostPort(at[0], at[1]), Epoch: epoch, settled: settled}
}

// take notes what a sentinel said, and moves the target where that changes what is
// to be believed.
func (s *Sentinel) take(a *asked, answer SentinelAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.answer = &answer
	best, answers, failures := s.newest()
	all := answers+failures == len(s.asked)
	switch {
	case answers == 0:
		if all {
			s.complain()
		}
	case s.rank < 0 && 2*answers < len(s.asked) && !all:
		return // it may be one that was away
	case best.rank() > s.rank, s.unanimous(best.Master):
		s.moveTo(best)
	}
	if answers > 0 && s.trouble != "" {
		s.trouble = ""
		s.target.opts.Log.Info("sentinels answer again", zap.String("master", s.name))
	}
	if all || s.rank >= 0 {
		once(s.tried)
	}
}

// complain logs what is wrong with sentinels that all don't name the master, when
// it is something else than before. It is called with the lock held.
func (s *Sentinel) complain() {
	trouble := s.verdict("the master " + s.name)
	if trouble == s.trouble {
		return
	}
	s.trouble = trouble
	if s.rank >= 0 {
		trouble += ": the one that was named last stays"
	}
	s.target.opts.Log.Warn(trouble, zap.String("master", s.name), zap.String("said", s.excuses()))
}

// newest returns the answer with the newest configuration, of equally new ones the
// one that most sentinels give, and how many sentinels answered and how many
// failed to. It is called with the lock held.
func (s *Sentinel) newest() (best SentinelAnswer, answers, failures int) {
	votes := map[string]int{}
	for _, a := range s.asked {
		switch {
		case a.answer == nil:
		case a.answer.Err != nil:
			failures++
		default:
			answers++
			votes[a.answer.Master]++
		}
	}
	best.Epoch = -1 // older than all
	for _, a := range s.asked {
		if a.answer == nil || a.answer.Err != nil {
			continue
		}
		newer := cmp.Or(cmp.Compare(a.answer.rank(), best.rank()), cmp.Compare(votes[a.answer.Master], votes[best.Master]))
		if newer > 0 {
			best = *a.answer
		}
	}
	return best, answers, failures
}

// unanimous reports whether all sentinels name that master. It is called with the
// lock held.
func (s *Sentinel) unanimous(master string) bool {
	return !slices.ContainsFunc(s.asked, func(a *asked) bool {
		return a.answer == nil || a.answer.Err != nil || a.answer.Master != master
	})
}

// moveTo moves the target. It is called with the lock held.
func (s *Sentinel) moveTo(to SentinelAnswer) {
	s.rank = to.rank()
	from := s.target.where.at()
	if from == to.Master {
		return
	}
	ended := s.target.moveTo(to.Master)
	once(s.known)
	if from == "" {
		s.target.opts.Log.Info("the sentinels name the master", zap.String("master", s.name), zap.String("address", to.Master))
	} else {
		s.target.opts.Log.Warn("Redis has a new master: connections to the old one are ended",
			zap.String("from", from), zap.String("to", to.Master), zap.Int("connections", ended))
	}
}

// once closes a channel that may be closed already; its owner's lock is held.
func once(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// keepListening listens to what one sentinel tells of its own accord until ctx
// ends.
func (s *Sentinel) keepListening(ctx context.Context, a *asked) {
	for idle(ctx, askPause, nil) {
		s.listen(ctx, a)
		idle(ctx, s.every, nil)
	}
}

// listen listens on one connection until it ends or falls silent. What the
// messages say in detail doesn't matter: the sentinels are asked.
func (s *Sentinel) listen(ctx context.Context, a *asked) {
	// The sentinel that leads a failover tells the others when the replica is
	// promoted; the others have a new master then, the leader a little later.
	sub := a.client.Subscribe(ctx, "+switch-master", "+promoted-slave")
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	pinged := false
	for {
		message, err := sub.ReceiveTimeout(ctx, s.every)
		var timeout net.Error
		switch {
		case err == nil:
			pinged = false
		case errors.As(err, &timeout) && timeout.Timeout() && !pinged && sub.Ping(ctx) == nil:
			pinged = true
		default:
			return
		}
		if news, ok := message.(*redis.Message); ok && slices.Contains(strings.Fields(news.Payload), s.name) {
			s.doubt()
		}
	}
}

// errReplica is why a connection that was just made is of no use.
var errReplica = errors.New("it is not the master")

// checkMaster makes sure that the server on a connection is a master. It asks by
// HELLO, which every user may: ROLE takes a right. A server that doesn't say, to
// somebody who has yet to authenticate, is taken for the master that the sentinels
// say it is.
func checkMaster(ctx context.Context, conn net.Conn, protocol int) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	defer conn.SetDeadline(time.Time{})
	hello := resp.AppendCommand(nil, [][]byte{[]byte("HELLO"), []byte(strconv.Itoa(protocol))})
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var reply []byte
	var scanner resp.ReplyScanner
	buf := make([]byte, 4<<10)
	for done := false; !done; {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		if _, done, err = scanner.Scan(buf[:n]); err != nil {
			return err
		}
		reply = append(reply, buf[:n]...)
	}
	if _, role, said := bytes.Cut(reply, []byte("$4\r\nrole\r\n")); said && !bytes.HasPrefix(role, []byte("$6\r\nmaster\r\n")) {
		return errReplica
	}
	return nil
}
