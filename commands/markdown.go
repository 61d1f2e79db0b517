package commands

import (
	"fmt"
	"strings"
)

//go:generate go test -run=^TestCommandsFileIsTheTable$ . -update

// Markdown returns the table as COMMANDS.md has it.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(commandsIntroduction)
	for i := range t.rows {
		row := &t.rows[i]
		fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", row.Name, anchor(row.Name), cell(row.Summary))
	}
	for i := range t.rows {
		t.rows[i].appendMarkdown(&b)
	}
	return b.String()
}

// commandsIntroduction is what holds for all commands.
const commandsIntroduction = `# Commands

Made from the command table in commands/ by ` + "`go generate ./commands`" + `. The same rows answer COMMAND INFO and
COMMAND DOCS, so redis-cli completes these commands and shows their arguments.

A business outcome is an array that starts with an integer code; where a word is shown behind the code, it says the
same for people. For one command and outcome the array has always the same elements; what doesn't apply is ` + "`\"\"`" + ` or
` + "`0`" + `. With a code other than 200 and 202, no sale and no lock was changed, but that CONFIRM or CANCEL
of a reservation whose time is over lets it expire then and there. Misuse is an error:
` + "`ERR wrong number of arguments …`, `ERR syntax error: …`, `ERR invalid …`" + `. What Redis itself refuses (NOAUTH, NOPERM, WRONGTYPE, …)
is passed on in its own words.

Ids (sku, user, request_id, token, name, …) are byte strings: any bytes, never read as numbers. Durations are
milliseconds, points in time are Unix milliseconds of the Redis server's clock. ` + "`{field value…}`" + ` is a map over RESP3 and
a flat array over RESP2; ` + "`…`" + ` repeats what stands before it.

Each reservation that is confirmed, cancelled or expires is published on the channel ` + "`seckill:results`" + ` as one JSON message:

` + "```" + `json
{"type":"seckill_result","data":{"token":"aXBob25l.1ax.ac7f52da88b4e4be0a5afe20","status":"CONFIRMED","order_id":"order-1001"}}
` + "```" + `

The status is CONFIRMED, or CANCELLED or EXPIRED with an empty order id. Bytes of an order id that aren't UTF-8 arrive as U+FFFD. Who isn't
subscribed at that moment misses the message, and what a user without the right to the channel settles isn't published:
SECKILL.RESULT has the last word.

A sale has four keys for each of its shards, ` + "`seckill:{tag}:sale:sku`" + ` and the same with ` + "`buyers`, `orders` and `queue`" + `, none with a TTL,
and a member in the sorted set ` + "`seckill:sales`" + `. The tag puts the four into one slot of a cluster; the field queues of SECKILL.INFO
shows it. SECKILL.DROP removes them all. Beside them are ` + "`restocks`" + `, ` + "`keeper`" + ` (which sidecar looks after the sale) and, with RATE, a
counter for each user who asks, which lives for the window.

| command | what it does |
|---|---|
`

func (c *Command) appendMarkdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n\n%s. Since %s, %s.", c.Name, c.Usage(), c.Summary, c.Since, c.Complexity)
	if c.Concurrent {
		b.WriteString(" A run of these in one pipeline executes concurrently; the replies come in order.")
	}
	b.WriteString("\n")
	if len(c.Arguments) > 0 {
		b.WriteString("\n| argument | meaning |\n|---|---|\n")
		for _, a := range c.Arguments {
			a.appendMarkdown(b)
		}
	}
	b.WriteString("\n| reply | meaning |\n|---|---|\n")
	for _, o := range c.Replies {
		fmt.Fprintf(b, "| `%s` | %s |\n", cell(o.Shape), cell(o.Meaning))
	}
}

// appendMarkdown writes a row for the argument, or for each that it consists of.
func (a *Argument) appendMarkdown(b *strings.Builder) {
	if a.Summary != "" || len(a.Sub) == 0 {
		fmt.Fprintf(b, "| `%s` | %s |\n", cell(a.usage()), cell(a.Summary))
	}
	for i := range a.Sub {
		a.Sub[i].appendMarkdown(b)
	}
}

// anchor is what a heading is called in a link.
func anchor(heading string) string {
	return strings.ToLower(strings.ReplaceAll(heading, ".", ""))
}

// cell writes text so that it stays in its cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
