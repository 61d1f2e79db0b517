package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value is one field of a Config, which knows what is allowed in it.
type value interface {
	// set takes a string, as flags and the environment have it, or whatever
	// YAML made of it. The error says what is allowed.
	set(any) error
	// String shows the value as it would be written, passwords masked.
	fmt.Stringer
}

// text is a value whose written form is a string.
type text struct {
	parse func(string) error
	show  func() string
}

func (v text) set(written any) error {
	s, ok := written.(string)
	if !ok {
		return errors.New("want a string; a number, a date, true, false and null need quotes")
	}
	return v.parse(s)
}

func (v text) String() string { return v.show() }

// number is a value whose written form is a decimal integer.
type number struct {
	least, most int64
	unit        string // "" or " milliseconds"
	store       func(int64)
	load        func() int64
}

func (v number) set(written any) error {
	var n int64
	var err error
	switch w := written.(type) {
	case int:
		n = int64(w)
	case string:
		n, err = strconv.ParseInt(w, 10, 64)
	default:
		err = strconv.ErrSyntax
	}
	if err != nil || n < v.least || n > v.most {
		return fmt.Errorf("want an integer%s from %d to %d", v.unit, v.least, v.most)
	}
	v.store(n)
	return nil
}

func (v number) String() string { return strconv.FormatInt(v.load(), 10) }

func integer(field *int, least, most int64) value {
	return number{
		least: least, most: most,
		store: func(n int64) { *field = int(n) },
		load:  func() int64 { return int64(*field) },
	}
}

func milliseconds(field *time.Duration, least, most int64) value {
	return number{
		least: least, most: most, unit: " of milliseconds",
		store: func(n int64) { *field = time.Duration(n) * time.Millisecond },
		load:  field.Milliseconds,
	}
}

// yesNo is a value whose written form is true or false.
type yesNo struct{ field *bool }

func (v yesNo) set(written any) error {
	switch fmt.Sprint(written) {
	case "true":
		*v.field = true
	case "false":
		*v.field = false
	default:
		return errors.New("want true or false")
	}
	return nil
}

func (v yesNo) String() string { return strconv.FormatBool(*v.field) }

func boolean(field *bool) value { return yesNo{field} }

func oneOf(field *string, allowed ...string) value {
	return checked(field, func(s string) error {
		if !slices.Contains(allowed, s) {
			return fmt.Errorf("want one of %s", strings.Join(allowed, ", "))
		}
		return nil
	})
}

// prefixBytesMax leaves room for an id of 256 bytes in a key that is still easy
// to look at.
const prefixBytesMax = 64

// prefix is the start of keys. Braces would make it, or a part of it, the hash
// tag that decides in which slot of a cluster the keys live.
func prefix(field *string, emptyAllowed bool) value {
	least := 1
	if emptyAllowed {
		least = 0
	}
	return checked(field, func(s string) error {
		if len(s) < least || len(s) > prefixBytesMax || strings.ContainsAny(s, "{}") {
			return fmt.Errorf("want %d to %d bytes without braces", least, prefixBytesMax)
		}
		return nil
	})
}

func adminAddress(field *string) value {
	return checked(field, func(s string) error {
		if s == "" {
			return nil
		}
		return checkHostPort(s)
	})
}

// checked is a string that is stored as it is written.
func checked(field *string, check func(string) error) value {
	return text{
		parse: func(s string) error {
			if err := check(s); err != nil {
				return err
			}
			*field = s
			return nil
		},
		show: func() string { return strconv.Quote(*field) },
	}
}

// plain is a string that may be anything.
func plain(field *string) value { return checked(field, func(string) error { return nil }) }

// secret is a password.
func secret(field *Secret) value {
	return text{
		parse: func(s string) error {
			*field = Secret(s)
			return nil
		},
		show: func() string { return strconv.Quote(fmt.Sprint(*field)) },
	}
}

// unixMode is who may connect to a unix socket, as chmod takes it. It is text: to
// YAML, 0770 is another number.
func unixMode(field *fs.FileMode) value {
	return text{
		parse: func(s string) error {
			mode, err := strconv.ParseUint(s, 8, 32)
			if s != "" && (err != nil || mode == 0 || mode > 0o777) {
				return errors.New(`want permissions in octal, such as "0770", at most "0777"; or "" for what the umask makes it`)
			}
			*field = fs.FileMode(mode)
			return nil
		},
		show: func() string {
			if *field == 0 {
				return `""`
			}
			return fmt.Sprintf(`"%04o"`, *field)
		},
	}
}

func listeners(field *[]Address) value {
	return text{
		parse: func(s string) error {
			var addresses []Address
			for part := range strings.SplitSeq(s, ",") {
				a, err := parseAddress(strings.TrimSpace(part))
				if err != nil {
					return err
				}
				if slices.Contains(addresses, a) {
					return fmt.Errorf("%s is there twice", a)
				}
				addresses = append(addresses, a)
			}
			*field = addresses
			return nil
		},
		show: func() string {
			parts := make([]string, len(*field))
			for i, a := range *field {
				parts[i] = a.String()
			}
			return strconv.Quote(strings.Join(parts, ","))
		},
	}
}

func parseAddress(s string) (Address, error) {
	path, isUnix := strings.CutPrefix(s, "unix://")
	if isUnix {
		return Address{Network: "unix", Address: path}, checkSocketPath(path)
	}
	hostPort, secured := strings.CutPrefix(s, "tls://")
	if err := checkHostPort(hostPort); err != nil {
		return Address{}, fmt.Errorf("%w, tls://host:port, or unix:///path", err)
	}
	return Address{Network: "tcp", Address: hostPort, TLS: secured}, nil
}

// socketPathMax is what a socket address holds on Linux, without its closing
// zero byte.
const socketPathMax = 107

func checkSocketPath(path string) error {
	if !strings.HasPrefix(path, "/") || len(path) > socketPathMax || strings.ContainsRune(path, 0) {
		return fmt.Errorf("want an absolute path of at most %d bytes after unix://", socketPathMax)
	}
	return nil
}

// validHost accepts a name or an address, and nothing that has a meaning of its
// own in a URL.
func validHost(host string) bool {
	if strings.Contains(host, ":") {
		return net.ParseIP(host) != nil
	}
	return hostName.MatchString(host)
}

var hostName = regexp.MustCompile(`^[\w.-]+$`)

// checkHostPort allows an empty host, all addresses, and port 0, any free one:
// both are for listening.
func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host != "" && !validHost(host) {
		return errors.New("want host:port or [address]:port")
	}
	return checkPort(port, 0)
}

func checkPort(port string, least uint64) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n < least {
		return fmt.Errorf("want host:port with a port from %d to 65535", least)
	}
	return nil
}

func location(field *Upstream) value {
	return text{
		parse: func(s string) (err error) {
			u, err := ParseUpstream(s)
			if err == nil {
				*field = u
			}
			return err
		},
		show: func() string { return strconv.Quote(field.String()) },
	}
}
