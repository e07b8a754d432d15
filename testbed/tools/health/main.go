// Command health prints what kstatus and Argo CD make of Kubernetes objects: it reads a List as JSON from standard
// input, and the Lua scripts for Argo CD from the ConfigMap in the file that argument 1 names.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

type line struct {
	Kind           string `json:"kind"`
	Name           string `json:"name"`
	Kstatus        string `json:"kstatus"`
	KstatusMessage string `json:"kstatusMessage"`
	Argocd         string `json:"argocd"`
	ArgocdMessage  string `json:"argocdMessage"`
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: health argocd-health.yaml <list.json")
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var config corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		log.Fatalf("%s: %v", os.Args[1], err)
	}
	var list struct{ Items []unstructured.Unstructured }
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		log.Fatalf("items of standard input: %v", err)
	}
	for _, item := range list.Items {
		computed, err := status.Compute(&item)
		if err != nil {
			log.Fatalf("%s %s: kstatus: %v", item.GetKind(), item.GetName(), err)
		}
		key := "resource.customizations.health." + item.GroupVersionKind().Group + "_" + item.GetKind()
		hs, err := runScript(config.Data[key], item.Object)
		if err != nil {
			log.Fatalf("%s %s: data[%s] of %s: %v", item.GetKind(), item.GetName(), key, os.Args[1], err)
		}
		health, message := lua.LVAsString(hs.RawGetString("status")), lua.LVAsString(hs.RawGetString("message"))
		told := line{item.GetKind(), item.GetName(), computed.Status.String(), computed.Message, health, message}
		if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
			log.Fatal(err)
		}
	}
}

// runScript opens fewer libraries than Argo CD does: a script that runs here needs no useOpenLibs there.
func runScript(script string, object map[string]any) (*lua.LTable, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	lua.OpenBase(state)
	lua.OpenTable(state)
	state.SetTop(0)
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	hs, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return nil, fmt.Errorf("expected a script that returns a table, found %s", state.Get(-1).Type())
	}
	return hs, nil
}

func toLua(state *lua.LState, value any) lua.LValue {
	table := state.NewTable()
	switch value := value.(type) {
	case string:
		return lua.LString(value)
	case bool:
		return lua.LBool(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		for _, element := range value {
			table.Append(toLua(state, element))
		}
	case map[string]any:
		for name, field := range value {
			table.RawSetString(name, toLua(state, field))
		}
	default:
		return lua.LNil
	}
	return table
}
