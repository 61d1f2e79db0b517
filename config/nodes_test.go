package config

import (
	"strings"
	"testing"
)

func TestLockNodes(t *testing.T) {
	var nodes []Upstream
	v := lockNodes(&nodes)
	for written, want := range map[string]int{
		"":                                    0,
		"a:1,b:2,c:3":                         3,
		"a:1, b:2 ,c:3":                       3,
		"a:1,a:2,a:3,a:4,redis://u:pw@b:5/3":  5,
		"rediss://a:1,rediss://b:2,unix:///c": 3,
	} {
		if err := v.set(written); err != nil || len(nodes) != want {
			t.Errorf("%q: %d nodes, %v", written, len(nodes), err)
		}
	}
	if err := v.set("redis://u:secret@a:1,b:2,c:3"); err != nil || strings.Contains(v.String(), "secret") {
		t.Errorf("%s, %v", v, err)
	}
	for written, want := range map[string]string{
		"a:1":                            "1 servers, allowed are 3, 5 or another odd number up to 9",
		"a:1,b:2,c:3,d:4":                "4 servers, allowed are 3, 5 or another odd number up to 9",
		"a:1,b:2,a:1":                    "a:1 is there twice",
		"a:1,b:2,redis://a:1/1":          "redis://a:1/1 is there twice",
		"a:1,b:2,embedded":               "want independent servers",
		"a:1,b:2,redis+cluster://c:3":    "want independent servers",
		"a:1,b:2,redis+sentinel://c:3/m": "want independent servers",
		"a:1,b:2,":                       "",
		"a:1,b:2,redis://a/x":            "",
	} {
		if err := v.set(written); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", written, err, want)
		}
	}
}
