package commands

// Docs returns the documentation of a command as COMMAND DOCS gives it.
func (c *Command) Docs() Map {
	docs := Map{
		"summary", c.Summary,
		"since", c.Since,
		"group", c.Group,
		"complexity", c.Complexity,
	}
	if len(c.Arguments) > 0 {
		docs = append(docs, "arguments", argumentDocs(c.Arguments))
	}
	return docs
}

func argumentDocs(arguments []Argument) Array {
	var docs Array
	for _, a := range arguments {
		doc := Map{"name", a.Name, "type", a.Type}
		if a.Token != "" {
			doc = append(doc, "token", a.Token)
		}
		if a.Summary != "" {
			doc = append(doc, "summary", a.Summary)
		}
		var flags Array
		if a.Optional {
			flags = append(flags, Status("optional"))
		}
		if a.Multiple {
			flags = append(flags, Status("multiple"))
		}
		if len(flags) > 0 {
			doc = append(doc, "flags", flags)
		}
		if len(a.Sub) > 0 {
			doc = append(doc, "arguments", argumentDocs(a.Sub))
		}
		docs = append(docs, doc)
	}
	return docs
}
