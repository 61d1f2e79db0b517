package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "seckill-proxy"

// arrows are the imports that each of our packages may have among our packages.
// Paths are relative to the module; "" is the program.
var arrows = map[string][]string{
	"": {
		"admin", "commands", "commands/lock", "commands/seckill", "config", "internal/filewatch", "internal/hangup", "localcache", "metrics", "proxy",
		"upstream",
	},
	"proxy":            {"commands", "internal/hangup", "internal/pump", "internal/rawio", "internal/resp", "metrics", "sharding", "upstream"},
	"commands":         {"commands/lock", "commands/seckill", "internal/script"},
	"commands/seckill": {"internal/listen", "internal/script", "localcache", "sharding"},
	"commands/lock":    {"internal/listen", "internal/script", "sharding"},
	"upstream":         {"internal/hangup", "internal/pump", "internal/rawio", "internal/resp", "internal/script", "sharding"},
	"internal/pump":    {"internal/hangup", "internal/rawio"},

	"admin":                {},
	"config":               {},
	"metrics":              {},
	"sharding":             {},
	"localcache":           {},
	"internal/filewatch":   {},
	"internal/hangup":      {},
	"internal/listen":      {},
	"internal/nettest":     {},
	"internal/rawio":       {},
	"internal/resp":        {},
	"internal/script":      {},
	"internal/redistest":   {},
	"internal/sidecartest": {},
	"internal/rawclient":   {},
	"simulator":            {},
	"e2e":                  {},
	"clients":              {},
	"bench":                {},
}

// TestImports holds the direction of imports. Tests may import more than the
// packages that they test.
func TestImports(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"/...")
	output, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for decoder := json.NewDecoder(strings.NewReader(string(output))); decoder.More(); seen++ {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		name := relative(p.ImportPath)
		allowed, known := arrows[name]
		if !known {
			t.Errorf("package %s has no place in the table of this test", p.ImportPath)
		}
		for _, path := range p.Imports {
			if ours := path == module || strings.HasPrefix(path, module+"/"); ours && !slices.Contains(allowed, relative(path)) {
				t.Errorf("%s imports %s, which ARCHITECTURE.md rules out", p.ImportPath, path)
			}
			if path == "github.com/tidwall/redcon" && name != "proxy" {
				t.Errorf("%s imports redcon, which only proxy may", p.ImportPath)
			}
		}
	}
	if seen != len(arrows) {
		t.Errorf("the table of this test has %d packages, the module has %d", len(arrows), seen)
	}
}

// relative returns the path of a package inside of the module.
func relative(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

// TestArchitectureNamesFiles wants every file that ARCHITECTURE.md names.
func TestArchitectureNamesFiles(t *testing.T) {
	content, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`[\w/.-]+\.(?:go|lua|md|yaml)\b`).FindAllString(string(content), -1)
	if len(names) == 0 {
		t.Fatal("ARCHITECTURE.md names no files")
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join("..", name)); err != nil {
			t.Errorf("ARCHITECTURE.md names %s, which isn't there", name)
		}
	}
}
