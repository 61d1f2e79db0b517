package commands

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write COMMANDS.md anew from the table of commands")

const commandsFile = "../COMMANDS.md"

func TestCommandsFileIsTheTable(t *testing.T) {
	want := NewTable().Markdown()
	if *update {
		if err := os.WriteFile(commandsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(commandsFile)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(want, "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if i >= len(gotLines) || i >= len(wantLines) || gotLines[i] != wantLines[i] {
			t.Fatalf("COMMANDS.md differs from the table from line %d on; go generate ./commands writes it anew", i+1)
		}
	}
}

// TestMarkdown writes a table in which everything occurs that a row can have.
func TestMarkdown(t *testing.T) {
	table := &Table{rows: []Command{{
		Name: "X.TAKE", Since: "2.0.0", Summary: "Takes a | b", Complexity: "O(1)", Concurrent: true,
		Arguments: []Argument{
			{Name: "name", Type: "string", Summary: "what"},
			{Name: "how", Type: "oneof", Optional: true, Sub: []Argument{
				{Name: "shared", Type: "pure-token", Token: "SHARED", Summary: "with others"},
				{Name: "n", Type: "integer", Token: "PERMITS", Summary: "so many"},
			}},
		},
		Replies: []Outcome{{200, "TAKEN", "[200 TAKEN name]", "It is yours"}},
	}}}
	want := commandsIntroduction + `| [X.TAKE](#xtake) | Takes a \| b |

## X.TAKE

` + "```\nX.TAKE name [SHARED | PERMITS n]\n```" + `

Takes a | b. Since 2.0.0, O(1). A run of these in one pipeline executes concurrently; the replies come in order.

| argument | meaning |
|---|---|
| ` + "`name`" + ` | what |
| ` + "`SHARED`" + ` | with others |
| ` + "`PERMITS n`" + ` | so many |

| reply | meaning |
|---|---|
| ` + "`[200 TAKEN name]`" + ` | It is yours |
`
	if got := table.Markdown(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
