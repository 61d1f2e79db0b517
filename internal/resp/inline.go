package resp

// splitInline splits an inline command into arguments as Redis's sdssplitargs
// does: separated by white space, with "double quotes" that know \n \r \t \b \a
// \\ \" and \xHH, and 'single quotes' that know \'. False when a quote isn't
// closed, or when something other than white space follows its end.
func splitInline(line []byte, args [][]byte) ([][]byte, bool) {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) || line[i] == 0 {
			// sdssplitargs works on C strings: NUL is their end.
			return args, true
		}
		arg := []byte{}
	argument:
		for i < len(line) && !isSpace(line[i]) && line[i] != 0 {
			quote := line[i]
			if quote != '"' && quote != '\'' {
				arg = append(arg, quote)
				i++
				continue
			}
			for i++; ; {
				if i == len(line) || line[i] == 0 {
					return args, false
				}
				if line[i] == quote {
					i++
					if i < len(line) && !isSpace(line[i]) && line[i] != 0 {
						return args, false
					}
					break argument
				}
				c, n := unescape(line[i:], quote)
				arg = append(arg, c)
				i += n
			}
		}
		args = append(args, arg)
	}
}

// unescape reads one byte of a quoted argument and says how many bytes it took.
func unescape(b []byte, quote byte) (byte, int) {
	if b[0] != '\\' || len(b) < 2 || b[1] == 0 {
		return b[0], 1
	}
	if quote == '\'' {
		if b[1] == '\'' {
			return '\'', 2
		}
		return b[0], 1
	}
	if b[1] == 'x' && len(b) >= 4 {
		high, ok := hexDigit(b[2])
		low, ok2 := hexDigit(b[3])
		if ok && ok2 {
			return high<<4 | low, 4
		}
	}
	switch b[1] {
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'b':
		return '\b', 2
	case 'a':
		return '\a', 2
	}
	return b[1], 2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// isSpace is C's isspace in the "C" locale.
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
