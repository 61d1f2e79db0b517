package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Scheme is a way to reach Redis.
type Scheme string

// The schemes of upstream.url.
const (
	SchemeEmbedded Scheme = "embedded" // a store inside the sidecar
	SchemeRedis    Scheme = "redis"    // TCP
	SchemeUnix     Scheme = "unix"     // a unix socket
)

// Upstream is where Redis is and who the sidecar is there.
type Upstream struct {
	Scheme   Scheme
	Address  string // "host:port", the path of a socket, "" for embedded
	User     string // "" for Redis's default user
	Password Secret // "" when clients authenticate themselves
	DB       int
}

// Network is what net.Dial calls the scheme: "tcp" or "unix", "" for embedded.
func (u Upstream) Network() string {
	switch u.Scheme {
	case SchemeRedis:
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
	b.WriteString(string(u.Scheme) + "://")
	if u.Password != "" {
		fmt.Fprintf(&b, "%s:%s@", url.PathEscape(u.User), u.Password)
	}
	switch {
	case u.Scheme == SchemeUnix:
		b.WriteString((&url.URL{Path: u.Address}).EscapedPath())
		if u.DB != 0 {
			fmt.Fprintf(&b, "?db=%d", u.DB)
		}
	case u.DB != 0:
		fmt.Fprintf(&b, "%s/%d", u.Address, u.DB)
	default:
		b.WriteString(u.Address)
	}
	return b.String()
}

const (
	upstreamForms = "embedded, host:port, redis://user:password@host:port/db, unix:///path?db=n"
	defaultPort   = "6379"
)

// ParseUpstream reads the forms of upstream.url. Its errors say what is allowed
// and never repeat what was given: there may be a password in it.
func ParseUpstream(s string) (Upstream, error) {
	if s == string(SchemeEmbedded) {
		return Upstream{Scheme: SchemeEmbedded}, nil
	}
	scheme, _, hasScheme := strings.Cut(s, "://")
	if !hasScheme {
		if strings.Contains(s, "@") {
			return Upstream{}, errors.New("want redis:// in front of a user and a password")
		}
		return redisAt(Upstream{Scheme: SchemeRedis}, s)
	}
	switch scheme {
	case "redis", "unix":
	case "rediss", "redis+sentinel", "redis+cluster":
		return Upstream{}, fmt.Errorf("%s:// is not supported by this version; allowed are %s", scheme, upstreamForms)
	default:
		return Upstream{}, fmt.Errorf("unknown scheme; allowed are %s", upstreamForms)
	}

	parsed, err := url.Parse(s)
	if err != nil {
		return Upstream{}, fmt.Errorf("not a URL; allowed are %s; special characters in a password are percent-encoded, @ as %%40", upstreamForms)
	}
	if strings.Contains(s, "#") {
		return Upstream{}, errors.New("a # is percent-encoded as %23")
	}
	u := Upstream{Scheme: Scheme(scheme)}
	if parsed.User != nil {
		password, _ := parsed.User.Password()
		if password == "" {
			return Upstream{}, errors.New("a user needs a password: user:password@, or :password@ for Redis's default user")
		}
		u.User, u.Password = parsed.User.Username(), Secret(password)
	}
	if u.Scheme == SchemeUnix {
		return unixAt(u, parsed)
	}
	if parsed.RawQuery != "" || parsed.ForceQuery {
		return Upstream{}, errors.New("want the database as redis://host:port/db, and nothing after it")
	}
	if u.DB, err = parseDB(strings.TrimPrefix(parsed.Path, "/")); err != nil {
		return Upstream{}, err
	}
	if parsed.Hostname() != "" && parsed.Port() == "" {
		return redisAt(u, net.JoinHostPort(parsed.Hostname(), defaultPort))
	}
	return redisAt(u, parsed.Host)
}

// redisAt completes an upstream with its host and port.
func redisAt(u Upstream, address string) (Upstream, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !validHost(host) {
		return Upstream{}, fmt.Errorf("want a host and a port; allowed are %s", upstreamForms)
	}
	u.Address = address
	return u, checkPort(port, 1)
}

// unixAt completes an upstream with the path and database of a socket.
func unixAt(u Upstream, parsed *url.URL) (Upstream, error) {
	if parsed.Host != "" {
		return Upstream{}, errors.New("want an absolute path, unix:///path with three slashes")
	}
	if err := checkSocketPath(parsed.Path); err != nil {
		return Upstream{}, err
	}
	u.Address = parsed.Path
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
