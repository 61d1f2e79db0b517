package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"seckill-proxy/internal/redistest"
	"seckill-proxy/internal/sidecartest"
)

// TestCluster puts the program in front of three masters with a replica each.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 3, Replicas: 1})
	nobody := sidecartest.FreeAddress(t)
	url := "redis+cluster://" + strings.Join(append([]string{nobody}, cluster.Addrs()...), ",")
	proxy := start(t, settings{Args: []string{"-upstream", url}})

	t.Run("check", func(t *testing.T) {
		p := sidecartest.Run(t, settings{Args: []string{"-check", "-upstream", url}})
		if code := p.ExitCode(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, p.Log)
		}
		for _, master := range cluster.Masters {
			for _, said := range []string{"\nseed: " + master.Addr + " answers\n", "\nmaster: " + master.Addr + " answers; its first slot is "} {
				if !strings.Contains(p.Log.String(), said) {
					t.Errorf("no %q in:\n%s", said, p.Log)
				}
			}
		}
		for _, said := range []string{"\nseed: " + down + nobody + ": dial tcp ", "\nupstream: ok: the cluster's masters answer, 3\n"} {
			if !strings.Contains(p.Log.String(), said) {
				t.Errorf("no %q in:\n%s", said, p.Log)
			}
		}
	})
	t.Run("ordinary client", func(t *testing.T) { seesOneRedis(t, proxy, cluster) })
	t.Run("sale", func(t *testing.T) {
		sellThrough(t, proxy, func() {
			killed := cluster.Masters[0]
			cluster.KillMaster(0)
			cluster.Rejoin(0, killed)
		})
	})
}

// TestCheckOfABrokenCluster kills the first of two masters: the second is reported
// all the same.
func TestCheckOfABrokenCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 2})
	dead, alive := cluster.Masters[0], cluster.Masters[1]
	dead.Kill()
	p := sidecartest.Run(t, settings{Args: []string{"-check", "-upstream", "redis+cluster://" + dead.Addr + "," + alive.Addr}})
	if code := p.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, said := range []string{
		"\nseed: " + down + dead.Addr, "\nseed: " + alive.Addr + " answers\n",
		"\nmaster: " + alive.Addr + " answers; its first slot is 8192\n", "\nseckill-proxy: master: " + down + dead.Addr + ": dial tcp ",
	} {
		if !strings.Contains(p.Log.String(), said) {
			t.Errorf("no %q in:\n%s", said, p.Log)
		}
	}
}

// seesOneRedis has a client that knows nothing of clusters use keys of all masters.
func seesOneRedis(t *testing.T, proxy *sidecar, cluster *redistest.Cluster) {
	ctx, c := t.Context(), proxy.client(2)
	const keys = 100
	var names []string
	pipe := c.Pipeline()
	for i := range keys {
		names = append(names, fmt.Sprint("key-", i))
		pipe.Set(ctx, names[i], i, 0)
		pipe.Incr(ctx, names[i])
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	values, err := c.MGet(ctx, names...).Result()
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range values {
		if value != fmt.Sprint(i+1) {
			t.Errorf("%s is %v, want %d", names[i], value, i+1)
		}
	}
	for _, master := range cluster.Masters {
		if n := master.Client(t).DBSize(ctx).Val(); n == 0 || n == keys {
			t.Errorf("%d of %d keys are on %s", n, keys, master.Addr)
		}
	}
	found := c.Keys(ctx, "key-*").Val()
	slices.Sort(found)
	slices.Sort(names)
	if !slices.Equal(found, names) {
		t.Errorf("KEYS finds %v", found)
	}
	if n := c.Del(ctx, names...).Val(); n != keys {
		t.Errorf("DEL deleted %d of %d", n, keys)
	}
}
