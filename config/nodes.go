package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nodesMax is how many independent lock servers make sense: each lock asks all.
const nodesMax = 9

// lockNodes are the independent servers of Redlock: none, or an odd number.
func lockNodes(field *[]Upstream) value {
	return text{
		parse: func(s string) error {
			var nodes []Upstream
			for part := range strings.SplitSeq(s, ",") {
				if s == "" {
					break
				}
				node, err := ParseUpstream(strings.TrimSpace(part))
				switch {
				case err != nil:
					return err
				case node.Scheme != SchemeRedis && node.Scheme != SchemeUnix:
					return errors.New("want independent servers: host:port, redis://, rediss:// or unix://")
				case slices.ContainsFunc(nodes, func(other Upstream) bool { return other.Addresses[0] == node.Addresses[0] }):
					return fmt.Errorf("%s is there twice", node)
				}
				nodes = append(nodes, node)
			}
			if n := len(nodes); n != 0 && (n < 3 || n > nodesMax || n%2 == 0) {
				return fmt.Errorf("%d servers, allowed are 3, 5 or another odd number up to %d", n, nodesMax)
			}
			*field = nodes
			return nil
		},
		show: func() string {
			parts := make([]string, len(*field))
			for i, node := range *field {
				parts[i] = node.String()
			}
			return strconv.Quote(strings.Join(parts, ","))
		},
	}
}
