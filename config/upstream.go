package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Scheme is a way to reach Redis.
type Scheme string

// The schemes of upstream.url. With TLS, redis is rediss in them.
const (
	SchemeEmbedded Scheme = "embedded"       // a store inside the sidecar
	SchemeRedis    Scheme = "redis"          // one server, over TCP
	SchemeUnix     Scheme = "unix"           // one server, over a unix socket
	SchemeSentinel Scheme = "redis+sentinel" // the master that sentinels name
	SchemeCluster  Scheme = "redis+cluster"  // a Redis Cluster
)

// Upstream is where Redis is and who the sidecar is there.
type Upstream struct {
	Scheme    Scheme
	TLS       bool
	Addresses []string // "host:port" of the server, of sentinels, or of some nodes of a cluster; the path of a socket; none for embedded
	Master    string   // what sentinels call it; "" without them
	User      string   // "" for Redis's default user
	Password  Secret   // "" when clients authenticate themselves
	DB        int
}

// Network is what net.Dial calls the scheme: "tcp" or "unix", "" for embedded.
func (u Upstream) Network() string {
	switch u.Scheme {
	case SchemeRedis, SchemeSentinel, SchemeCluster:
		return "tcp"
	case SchemeUnix:
		return "unix"
	default:
		return ""
	}
}

// String writes the URL, the password masked.
func (u Upstream) String() string {
	if u.Scheme == SchemeEmbedded {
		return string(SchemeEmbedded)
	}
	var b strings.Builder
	b.WriteString(u.written() + "://")
	if u.Password != "" {
		fmt.Fprintf(&b, "%s:%s@", url.PathEscape(u.User), u.Password)
	}
	hosts := strings.Join(u.Addresses, ",")
	if u.Scheme == SchemeUnix {
		hosts = (&url.URL{Path: hosts}).EscapedPath()
	}
	b.WriteString(hosts)
	if u.Scheme == SchemeSentinel {
		b.WriteString("/" + u.Master)
	}
	switch {
	case u.DB == 0:
	case u.Scheme == SchemeUnix:
		fmt.Fprintf(&b, "?db=%d", u.DB)
	default:
		fmt.Fprintf(&b, "/%d", u.DB)
	}
	return b.String()
}

// written is the scheme as it stands in the URL.
func (u Upstream) written() string {
	if u.TLS {
		return strings.Replace(string(u.Scheme), "redis", "rediss", 1)
	}
	return string(u.Scheme)
}

const (
	upstreamForms = "embedded, host:port, redis://user:password@host:port/db, unix:///path?db=n, " +
		"redis+sentinel://user:password@host:port,host:port/master/db, redis+cluster://user:password@host:port,host:port; " +
		"rediss in place of redis for TLS"
	redisPort    = "6379"
	sentinelPort = "26379"
)

var errSeveral = errors.New("want one host; several hosts need redis+cluster://, where they are nodes of a cluster, or redis+sentinel://, where they are sentinels")

// ParseUpstream reads the forms of upstream.url. Its errors say what is allowed
// and never repeat what was given: there may be a password in it.
func ParseUpstream(s string) (Upstream, error) {
	if s == string(SchemeEmbedded) {
		return Upstream{Scheme: SchemeEmbedded}, nil
	}
	scheme, rest, hasScheme := strings.Cut(s, "://")
	if !hasScheme {
		if strings.Contains(s, "@") {
			return Upstream{}, errors.New("want redis:// in front of a user and a password")
		}
		if strings.Contains(s, ",") {
			return Upstream{}, errSeveral
		}
		u := Upstream{Scheme: SchemeRedis, Addresses: []string{s}}
		return u, checkServer(s)
	}
	u, err := schemed(scheme)
	if err != nil {
		return Upstream{}, err
	}
	if strings.Contains(rest, "#") {
		return Upstream{}, errors.New("a # is percent-encoded as %23")
	}

	// net/url knows no lists of hosts: it is given the rest.
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	hosts := authority[strings.LastIndex(authority, "@")+1:]
	parsed, err := url.Parse("redis://" + strings.TrimSuffix(authority, hosts) + path)
	if err != nil {
		return Upstream{}, fmt.Errorf("not a URL; allowed are %s; special characters in a password are percent-encoded, @ as %%40", upstreamForms)
	}
	if parsed.User != nil {
		password, _ := parsed.User.Password()
		if password == "" {
			return Upstream{}, errors.New("a user needs a password: user:password@, or :password@ for Redis's default user")
		}
		u.User, u.Password = parsed.User.Username(), Secret(password)
	}
	if u.Scheme == SchemeUnix {
		return unixAt(u, hosts, parsed)
	}
	if u, err = u.at(hosts); err != nil {
		return Upstream{}, err
	}
	return u.with(parsed)
}

// schemed returns an upstream with what its scheme says.
func schemed(written string) (Upstream, error) {
	for _, u := range []Upstream{
		{Scheme: SchemeRedis}, {Scheme: SchemeRedis, TLS: true},
		{Scheme: SchemeUnix},
		{Scheme: SchemeSentinel}, {Scheme: SchemeSentinel, TLS: true},
		{Scheme: SchemeCluster}, {Scheme: SchemeCluster, TLS: true},
	} {
		if u.written() == written {
			return u, nil
		}
	}
	return Upstream{}, fmt.Errorf("unknown scheme; allowed are %s", upstreamForms)
}

// at completes an upstream with its hosts.
func (u Upstream) at(hosts string) (Upstream, error) {
	port := redisPort
	if u.Scheme == SchemeSentinel {
		port = sentinelPort
	}
	for host := range strings.SplitSeq(hosts, ",") {
		host = strings.TrimSpace(host)
		if host != "" && !strings.Contains(host[strings.LastIndex(host, "]")+1:], ":") {
			host += ":" + port
		}
		if err := checkServer(host); err != nil {
			return u, err
		}
		if slices.Contains(u.Addresses, host) {
			return u, errors.New("one of the hosts is there twice")
		}
		u.Addresses = append(u.Addresses, host)
	}
	if u.Scheme == SchemeRedis && len(u.Addresses) > 1 {
		return u, errSeveral
	}
	return u, nil
}

// with completes an upstream with what stands behind its hosts: the name of the
// master, for sentinels, and the number of the database.
func (u Upstream) with(parsed *url.URL) (Upstream, error) {
	if parsed.RawQuery != "" || parsed.ForceQuery {
		return u, errors.New("want the database as redis://host:port/db, and nothing after it")
	}
	db := strings.TrimPrefix(parsed.Path, "/")
	if u.Scheme == SchemeSentinel {
		u.Master, db, _ = strings.Cut(db, "/")
		if !hostName.MatchString(u.Master) {
			return u, errors.New("want what the sentinels call the master, redis+sentinel://host:port,host:port/master: letters, digits, and . - _")
		}
	}
	var err error
	if u.DB, err = parseDB(db); err != nil {
		return u, err
	}
	if u.Scheme == SchemeCluster && u.DB != 0 {
		return u, errors.New("a cluster has only database 0")
	}
	return u, nil
}

// checkServer allows the host and the port of a server.
func checkServer(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !validHost(host) {
		return fmt.Errorf("want a host and a port; allowed are %s", upstreamForms)
	}
	return checkPort(port, 1)
}

// unixAt completes an upstream with the path and database of a socket.
func unixAt(u Upstream, host string, parsed *url.URL) (Upstream, error) {
	if host != "" {
		return Upstream{}, errors.New("want an absolute path, unix:///path with three slashes")
	}
	if err := checkSocketPath(parsed.Path); err != nil {
		return Upstream{}, err
	}
	u.Addresses = []string{parsed.Path}
	query, err := url.ParseQuery(parsed.RawQuery)
	if err != nil {
		return Upstream{}, errors.New("want nothing but ?db=n after the path")
	}
	for name, values := range query {
		if name != "db" || len(values) != 1 {
			return Upstream{}, errors.New("want nothing but ?db=n after the path")
		}
		if u.DB, err = parseDB(values[0]); err != nil {
			return Upstream{}, err
		}
	}
	return u, nil
}

// parseDB reads the number of a database; "" is 0.
func parseDB(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, errors.New("want the number of a database, 0 or more")
	}
	return int(n), nil
}

// Secret is a string that formats and marshals as a mask, with every verb and
// inside of any structure. Convert it to string to use it.
type Secret string

const mask = "***"

// Format writes the mask, or nothing for an empty secret.
func (s Secret) Format(f fmt.State, _ rune) {
	if s != "" {
		_, _ = f.Write([]byte(mask))
	}
}

// MarshalText returns the mask, for JSON, YAML and structured logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(fmt.Sprint(s)), nil }

// redact shows a refused upstream.url only where it is plainly a host with
// numbers behind it. A password can stand in most other places of a URL that
// isn't well formed, so all of it is masked behind the scheme.
func redact(s string) string {
	if harmlessURL.MatchString(s) {
		return s
	}
	if scheme, _, found := strings.Cut(s, "://"); found {
		return scheme + "://" + mask
	}
	return mask
}

var harmlessURL = regexp.MustCompile(`^([a-z+]+://)?[\w.-]*(:\d+)?(/\d*)?$`)
