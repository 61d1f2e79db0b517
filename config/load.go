package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/v2"
)

// Flags are the flags that aren't settings.
type Flags struct {
	Config  string // the file that was read, "" for none
	Check   bool   // read and validate everything, try the upstream, report
	Health  bool   // ask the running sidecar's /healthz
	Help    bool
	Version bool
}

// Load reads the configuration: args are the command line without the program's
// name, environ is "NAME=value" as os.Environ returns it. Flags beat the
// environment, that beats the file, and that beats the defaults. A file is read
// only where -config or SECKILL_CONFIG names one.
//
// With Help or Version nothing else is read. An error has one line for each
// thing wrong: where it stands, the key, the value and what is allowed. What
// may be a password is masked in it.
func Load(args, environ []string) (Config, Flags, error) {
	flags, given, err := parseFlags(args, environ)
	if err != nil || flags.Help || flags.Version {
		return Default(), flags, err
	}
	c := Default()
	err = errors.Join(
		applyFile(&c, flags.Config),
		applyEnvironment(&c, environ),
		apply(&c, confmap.Provider(given, "."), flagOrigin),
	)
	if err == nil {
		err = c.Validate()
	}
	return c, flags, err
}

// parseFlags returns the flags, and the settings among them by their key.
func parseFlags(args, environ []string) (Flags, map[string]any, error) {
	var flags Flags
	given := map[string]any{}
	set := flag.NewFlagSet("seckill-proxy", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&flags.Config, "config", lookup(environ, variable("config")), "")
	set.BoolVar(&flags.Check, "check", false, "")
	set.BoolVar(&flags.Health, "health", false, "")
	set.BoolVar(&flags.Version, "version", false, "")
	for _, s := range settings {
		if s.flag != "" {
			set.Func(s.flag, "", func(text string) error {
				given[s.key] = text
				return nil
			})
		}
	}
	err := set.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.Help = true
		return flags, nil, nil
	case err == nil && set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if err != nil {
		var names []string
		set.VisitAll(func(f *flag.Flag) { names = append(names, "-"+f.Name) })
		return flags, nil, fmt.Errorf("command line: %w; allowed are %s", err, strings.Join(names, ", "))
	}
	return flags, given, nil
}

func flagOrigin(key string) string {
	s, _ := find(key)
	return "flag -" + s.flag
}

// applyFile sets what the YAML file says; "" for no file.
func applyFile(c *Config, name string) error {
	if name == "" {
		return nil
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	values, err := yaml.Parser().Unmarshal(content)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for key, value := range values {
		if strings.Contains(key, ".") {
			return fmt.Errorf("%s: %s: want a section, with the rest of the key indented below it", name, key)
		}
		if isSection(key) && isEmpty(value) {
			delete(values, key) // all its keys are commented out
		}
	}
	return apply(c, confmap.Provider(values, ""), func(string) string { return name })
}

// applyEnvironment sets what the SECKILL_* variables say.
func applyEnvironment(c *Config, environ []string) error {
	keys := map[string]string{} // of each variable
	for _, s := range settings {
		for _, name := range s.variables() {
			keys[name] = s.key
		}
	}
	used := map[string]string{} // which variable set a key
	var problems []error
	provider := env.Provider(".", env.Opt{
		Prefix:      variablePrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, text string) (string, any) {
			key, known := keys[name]
			switch {
			case name == variable("config") || !known && serviceLink.MatchString(name):
				return "", nil
			case !known:
				names := append(slices.Collect(maps.Keys(keys)), variable("config"))
				problems = append(problems, fmt.Errorf("environment: %s: unknown variable; allowed are %s", name, alike(name, "_", names)))
				return "", nil
			case used[key] != "" && used[key] != name:
				problems = append(problems, fmt.Errorf("environment: %s and %s both set %s; set one of them", used[key], name, key))
				return "", nil
			}
			used[key] = name
			return key, text
		},
	})
	err := apply(c, provider, func(key string) string { return "environment: " + used[key] })
	return errors.Join(append(problems, err)...)
}

// serviceLink matches the variables that Kubernetes sets in every container of
// a namespace which has a service called seckill or seckill-something. No key
// of ours looks like them.
var serviceLink = regexp.MustCompile(`^SECKILL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// apply sets everything that a provider has. origin says where a key's value
// stands.
func apply(c *Config, provider koanf.Provider, origin func(key string) string) error {
	k := koanf.New(".")
	if err := k.Load(provider, nil); err != nil {
		return err
	}
	var problems []error
	for _, key := range k.Keys() {
		s, known := find(key)
		if !known {
			problems = append(problems, fmt.Errorf("%s: %s: unknown key; allowed are %s", origin(key), key, alike(key, ".", allKeys())))
			continue
		}
		written := k.Get(key)
		if err := s.value(c).set(written); err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: bad value %s: %w", origin(key), key, s.shown(written), err))
		}
	}
	return errors.Join(problems...)
}

// shown is a refused value as an error may show it.
func (s setting) shown(written any) string {
	text, isString := written.(string)
	switch {
	case isString && s.secret:
		return fmt.Sprintf("%q", redact(text))
	case isString:
		return fmt.Sprintf("%q", text)
	case s.secret:
		return mask
	}
	return fmt.Sprint(written)
}

// lookup returns the value of an environment variable, "" where it isn't set.
func lookup(environ []string, name string) string {
	for _, e := range environ {
		if text, found := strings.CutPrefix(e, name+"="); found {
			return text
		}
	}
	return ""
}

func allKeys() []string {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = s.key
	}
	return keys
}

func isSection(name string) bool {
	return slices.ContainsFunc(settings, func(s setting) bool { return s.section() == name })
}

func isEmpty(value any) bool {
	section, isMap := value.(map[string]any)
	return value == nil || isMap && len(section) == 0
}

// alike lists the names of the section that a wrong name belongs to, or all of
// them where there is no such section.
func alike(wrong, separator string, names []string) string {
	slices.Sort(names)
	trimmed := strings.TrimPrefix(wrong, variablePrefix)
	section, _, _ := strings.Cut(trimmed, separator)
	start := strings.TrimSuffix(wrong, trimmed) + section + separator
	var near []string
	for _, name := range names {
		if strings.HasPrefix(name, start) {
			near = append(near, name)
		}
	}
	if near == nil {
		near = names
	}
	return strings.Join(near, ", ")
}

// Usage is what -h prints: the flags, and each setting under all its names.
func Usage() string {
	var b strings.Builder
	b.WriteString(`usage: seckill-proxy [flags]

Flash-sale stock and distributed locks for any Redis client: a sidecar that
answers SECKILL.* and LOCK.* and forwards everything else to Redis.

  -config FILE  read the settings in this YAML file (SECKILL_CONFIG)
  -check        read and validate everything, try Redis, report; exit 0 or 1
  -health       ask the running sidecar's /healthz; exit 0 or 1
  -version      print the version
  -h            print this

Settings: the key in the file, the environment variables, the flag.
A flag beats the environment, that beats the file, and that beats the default.
`)
	for _, s := range settings {
		names := append([]string{s.key}, s.variables()...)
		if s.flag != "" {
			names = append(names, "-"+s.flag)
		}
		fmt.Fprintf(&b, "\n  %s (default %s)\n      %s\n", strings.Join(names, "  "), s.written(), s.why)
	}
	return b.String()
}

// written is the default as it is written in YAML.
func (s setting) written() string {
	if text, isString := s.initial.(string); isString {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprint(s.initial)
}
