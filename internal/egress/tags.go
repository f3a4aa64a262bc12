package egress

import "maps"

// Tags are key=value pairs of ours, stored on the object itself.
type Tags map[string]string

// Contains tells whether t carries every pair of want.
func (t Tags) Contains(want Tags) bool {
	for k, v := range want {
		if got, ok := t[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Merge returns base overlaid with t: where both name a key, t's value wins.
// Neither is changed.
func (t Tags) Merge(base Tags) Tags {
	out := make(Tags, len(base)+len(t))
	maps.Copy(out, base)
	maps.Copy(out, t)
	return out
}
