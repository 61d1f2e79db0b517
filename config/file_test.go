package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write config.yaml anew from the table of settings")

const configFile = "../config.yaml"

const header = `# Every key of seckill-proxy with its default. The file is read only where
# -config FILE or SECKILL_CONFIG=FILE names it, and may leave out whatever is to
# stay as it is.
#
# Every key can be set by an environment variable too: SECKILL_ and the key in
# capitals, dots as underscores: SECKILL_LOCK_PREFIX for lock.prefix. Short names
# are SECKILL_UPSTREAM for upstream.url and SECKILL_ADMIN for admin.listen.
# A flag beats the environment, that beats this file, and that beats the default.
#
# Made from config/settings.go by go generate ./config.
`

// table writes the settings as YAML.
func table() string {
	var b strings.Builder
	b.WriteString(header)
	section := ""
	for _, s := range settings {
		indent, name := "", s.key
		if s.section() != "" {
			indent, name = "  ", strings.TrimPrefix(s.key, s.section()+".")
		}
		if s.section() != section || section == "" {
			b.WriteByte('\n')
		}
		if s.section() != section {
			section = s.section()
			fmt.Fprintf(&b, "%s:\n", section)
		}
		fmt.Fprintf(&b, "%s# %s\n%s%s: %s\n", indent, s.why, indent, name, s.written())
	}
	return b.String()
}

func TestConfigFileIsTheTable(t *testing.T) {
	want := table()
	if *update {
		if err := os.WriteFile(configFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(configFile)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(string(got), "\n"), strings.Split(want, "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if i >= len(gotLines) || i >= len(wantLines) || gotLines[i] != wantLines[i] {
			t.Fatalf("config.yaml differs from the table in settings.go from line %d on; go generate ./config writes it anew", i+1)
		}
	}
}

// TestConfigFileHoldsTheDefaults reads config.yaml as a user would. The values
// are moved away from the defaults first, so that a key that the file leaves
// out shows.
func TestConfigFileHoldsTheDefaults(t *testing.T) {
	var c Config
	if err := applyFile(&c, configFile); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Fatalf("config.yaml:\n%s\ndefaults:\n%s", c, Default())
	}
}
