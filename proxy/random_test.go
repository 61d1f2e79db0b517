package proxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"seckill-proxy/internal/rawclient"
)

// templates are commands whose replies depend on nothing but what was sent
// before. %k is a key, %v a value, %i an integer, %f a number, %w a wrong word.
var templates = strings.Split(strings.TrimSpace(`
SET %k %v|SET %k %v NX|SET %k %v XX GET|SET %k %v EX 1000|GET %k|GETDEL %k|GETEX %k PERSIST|GETSET %k %v|SETNX %k %v|MSET %k %v %k %v|MGET %k %k %k
INCR %k|INCRBY %k %i|DECRBY %k %i|INCRBYFLOAT %k %f|APPEND %k %v|STRLEN %k|GETRANGE %k %i %i|SETRANGE %k 3 %v|LCS %k %k
SETBIT %k 9 1|GETBIT %k %i|BITCOUNT %k|BITPOS %k 1|BITFIELD %k INCRBY u8 0 %i|BITOP OR %k %k %k
LPUSH %k %v %v|RPUSH %k %v|LPUSHX %k %v|LPOP %k|RPOP %k 2|LRANGE %k %i %i|LLEN %k|LINDEX %k %i|LSET %k %i %v|LREM %k %i %v|LTRIM %k %i %i
LINSERT %k BEFORE %v %v|LMOVE %k %k LEFT RIGHT|RPOPLPUSH %k %k|LPOS %k %v|LMPOP 2 %k %k LEFT|BLPOP %k 0.001|BRPOPLPUSH %k %k 0.001
SADD %k %i %i|SREM %k %i|SCARD %k|SISMEMBER %k %i|SMISMEMBER %k %i %i|SINTERCARD 2 %k %k|SMOVE %k %k %i|SINTERSTORE %k %k %k
ZADD %k %f %v|ZADD %k GT CH %f %v|ZINCRBY %k %f %v|ZSCORE %k %v|ZRANGE %k %i %i WITHSCORES|ZRANK %k %v|ZCARD %k|ZCOUNT %k %f %f|ZPOPMIN %k|ZPOPMAX %k 2
ZREM %k %v|ZUNIONSTORE %k 2 %k %k|ZRANGEBYSCORE %k -inf %f LIMIT 0 3|ZMSCORE %k %v %v|ZDIFF 2 %k %k WITHSCORES|BZPOPMIN %k 0.001
HSET %k %v %v|HGET %k %v|HDEL %k %v|HLEN %k|HINCRBY %k %v %i|HEXISTS %k %v|HMGET %k %v %v|HSETNX %k %v %v|HINCRBYFLOAT %k %v %f
XADD %k 1-%i f %v|XLEN %k|XRANGE %k - +|XDEL %k 1-1|XTRIM %k MAXLEN 2|XREAD COUNT 2 STREAMS %k 0|XREAD BLOCK 1 STREAMS %k $|XGROUP CREATE %k g 0
XREADGROUP GROUP g c COUNT 1 STREAMS %k >|XACK %k g 1-1|XPENDING %k g|PFADD %k %v|PFCOUNT %k %k|PFMERGE %k %k
GEOADD %k 13.3 38.1 %v|GEODIST %k %v %v|GEOPOS %k %v
DEL %k|UNLINK %k %k|EXISTS %k %k|TYPE %k|RENAME %k %k|RENAMENX %k %k|COPY %k %k|TOUCH %k|TTL %k|PERSIST %k|EXPIRE %k 1000|EXPIRE %k -1|MOVE %k 1|OBJECT ENCODING %k
EVAL "return redis.call('GET', KEYS[1])" 1 %k|EVAL "return {ARGV[1], redis.call('INCR', KEYS[1])}" 1 %k %v|EVAL "redis.call('SELECT', 1) return redis.call('DBSIZE')" 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0|EVAL_RO "return redis.call('EXISTS', KEYS[1])" 1 %k|SCRIPT EXISTS %v
DBSIZE|SELECT 0|SELECT 1|SELECT 2|SELECT %i|SWAPDB 0 1|FLUSHDB|PING|PING %v|ECHO %v|NOSUCH %v|%w %k|CLIENT SETNAME %k|CLIENT GETNAME|WAIT 0 0|PUBLISH ch %v
MULTI|MULTI|MULTI|EXEC|EXEC|EXEC|EXEC|DISCARD|WATCH %k|WATCH %k %k|UNWATCH|RESET|HELLO 2|HELLO 3|HELLO 9|AUTH default x|CLIENT REPLY ON
COMMAND GETKEYS SET %k %v|PUBSUB NUMSUB ch|CONFIG GET maxmemory|ACL WHOAMI|ROLE
`), "\n")

// randomCommand makes a command from a random template. Some are damaged, so
// that errors are compared too.
func randomCommand(random *rand.Rand) []string {
	row := strings.Split(templates[random.IntN(len(templates))], "|")
	args, err := words(row[random.IntN(len(row))])
	if err != nil {
		panic(err)
	}
	for i, arg := range args {
		arg = strings.ReplaceAll(arg, "%k", fmt.Sprint("k", random.IntN(6)))
		arg = strings.ReplaceAll(arg, "%v", randomValue(random))
		arg = strings.ReplaceAll(arg, "%i", fmt.Sprint(random.IntN(12)-4))
		arg = strings.ReplaceAll(arg, "%f", []string{"1", "2.5", "-3", "1e3", "inf", "x", "0.1"}[random.IntN(7)])
		arg = strings.ReplaceAll(arg, "%w", []string{"nosuch", "GETX", "", "a b", "\r\n", "seckil.buy"}[random.IntN(6)])
		args[i] = arg
	}
	switch random.IntN(40) {
	case 0:
		if args[0] != "COMMAND" { // alone it lists the sidecar's commands too
			args = args[:1+random.IntN(len(args))]
		}
	case 1:
		args = append(args, randomValue(random))
	case 2:
		args[0] = strings.ToLower(args[0])
	}
	return args
}

func randomValue(random *rand.Rand) string {
	switch random.IntN(12) {
	case 0:
		return ""
	case 1:
		return "\r\n+OK\r\n"
	case 2:
		return "\x00\xff"
	case 3:
		return strings.Repeat("x", random.IntN(5000))
	case 4:
		return strings.Repeat("long", 20_000)
	}
	return fmt.Sprint(random.IntN(5))
}

// hasTheSidecarsPart reports commands whose replies are Redis's and the sidecar's
// together: TestCommandListsAreMerged.
func hasTheSidecarsPart(args []string) bool {
	return strings.EqualFold(args[0], "COMMAND") && (len(args) == 1 || !strings.EqualFold(args[1], "GETKEYS"))
}

var helloID = regexp.MustCompile(`(\r\n\$2\r\nid\r\n):\d+\r\n`)

// TestRandomCommandsAreAnsweredAsByRedis sends the same random commands to Redis
// and through the sidecar, cut at random, and compares all bytes that come back.
func TestRandomCommandsAreAnsweredAsByRedis(t *testing.T) {
	p := startQuickPair(t)
	direct := p.direct(t)
	random := newRandom(t)
	for round := range 60 {
		commands := make([][]string, 80)
		var raw strings.Builder
		for i := range commands {
			commands[i] = randomCommand(random)
			for hasTheSidecarsPart(commands[i]) {
				commands[i] = randomCommand(random)
			}
			if random.IntN(4) == 0 && len(strings.Join(commands[i], "")) < 10_000 {
				raw.WriteString(inline(commands[i]...))
			} else {
				raw.WriteString(rawclient.Encode(commands[i]...))
			}
		}
		seed := random.Uint64()
		replies := func(addr string) []string {
			freshDatabase(t, direct)
			c := rawclient.Dial(t, addr)
			defer c.Close()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				dice := rand.New(rand.NewPCG(seed, 0))
				for rest := raw.String(); rest != ""; {
					n := 1 + dice.IntN(min(len(rest), 1+dice.IntN(20_000)))
					if _, err := io.WriteString(c.TCPConn, rest[:n]); err != nil {
						return // the reader says so
					}
					rest = rest[n:]
				}
			}()
			var all []string
			for range commands {
				reply, err := c.TryReply()
				if err != nil {
					reply += describe(err)
				}
				all = append(all, helloID.ReplaceAllString(reply, "$1"))
				if err != nil {
					break
				}
			}
			_ = c.CloseWrite()
			all = append(all, c.Rest())
			<-sent
			return all
		}
		want, got := replies(p.redisAddr), replies(p.addr)
		if i := firstDifference(got, want); i >= 0 {
			var before strings.Builder
			for _, command := range commands[max(0, i-15):min(i+1, len(commands))] {
				fmt.Fprintf(&before, "\t%s\n", rawclient.Abridged(strings.Join(command, " ")))
			}
			t.Fatalf("round %d, reply %d, after\n%s\ngot  %s\nwant %s", round, i, before.String(), entry(got, i), entry(want, i))
		}
	}
}
