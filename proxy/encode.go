package proxy

import (
	"fmt"

	"github.com/tidwall/redcon"

	"seckill-proxy/commands"
)

// appendReply appends a reply in the protocol that the session speaks, 2 or 3.
func appendReply(dst []byte, reply commands.Reply, protocol int) []byte {
	switch v := reply.(type) {
	case int:
		return redcon.AppendInt(dst, int64(v))
	case int64:
		return redcon.AppendInt(dst, v)
	case string:
		return redcon.AppendBulkString(dst, v)
	case []byte:
		return redcon.AppendBulk(dst, v)
	case commands.Status:
		return redcon.AppendString(dst, string(v))
	case commands.Error:
		return redcon.AppendError(dst, string(v))
	case commands.Array:
		return appendAll(redcon.AppendArray(dst, len(v)), v, protocol)
	case commands.Map:
		if protocol < 3 {
			return appendAll(redcon.AppendArray(dst, len(v)), v, protocol)
		}
		return appendAll(appendMapHead(dst, len(v)/2), v, protocol)
	}
	panic(fmt.Sprintf("proxy: a reply can't hold a %T", reply))
}

func appendAll(dst []byte, values []commands.Reply, protocol int) []byte {
	for _, v := range values {
		dst = appendReply(dst, v, protocol)
	}
	return dst
}

// appendMapHead appends the head of a RESP3 map, which redcon doesn't have.
func appendMapHead(dst []byte, pairs int) []byte {
	return fmt.Appendf(dst, "%%%d\r\n", pairs)
}
