// Reads a JSON array of kind files from stdin; writes for each what kind makes of it, or why kind refuses it.
// Built inside kind's own module, because its reader is internal.
package main

import (
	"encoding/json"
	"os"

	"sigs.k8s.io/kind/pkg/internal/apis/config"
	"sigs.k8s.io/kind/pkg/internal/apis/config/encoding"
)

type result struct {
	Cluster *config.Cluster
	Refusal string
}

func read(text string) result {
	cluster, err := encoding.Parse([]byte(text))
	if err != nil {
		return result{Refusal: err.Error()}
	}
	config.SetDefaultsCluster(cluster)
	if err := cluster.Validate(); err != nil {
		return result{Refusal: err.Error()}
	}
	return result{Cluster: cluster}
}

func main() {
	var texts []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		panic(err)
	}
	results := make([]result, len(texts))
	for i, text := range texts {
		results[i] = read(text)
	}
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		panic(err)
	}
}
