// Keeps a file with the phase of each pod in ./pods. Start as many as you like: each pod has one worker at a time.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

const spec = `{"watch": [{"resource": "pods", "changed": "status.phase"}], "leaseSeconds": 10, "maxAttempts": 20}`

type item struct {
	Namespace, Name, Lease string
	Object                 *struct{ Status struct{ Phase string } }
}

// call returns the status code of the answer, and an error unless it is a success.
func call(method, path, body string, answer any) (int, error) {
	url, named := os.LookupEnv("INFORMERD_URL")
	if !named {
		url = "http://localhost:8090"
	}
	request, err := http.NewRequest(method, url+"/v1/queues/pod-files"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = errors.New(string(text))
	} else if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return response.StatusCode, err
}

func reconcile(it item) error {
	name := it.Namespace + "_" + it.Name
	if it.Object == nil { // deleted; only the key is known
		return os.RemoveAll("pods/" + name)
	}
	written := fmt.Sprintf(".%s.%d", name, os.Getpid())
	if err := os.WriteFile(written, []byte(it.Object.Status.Phase+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(written, "pods/"+name)
}

func main() {
	for os.MkdirAll("pods", 0o755); ; {
		var leased struct{ Items []item }
		code, err := call("POST", "/lease", `{"max": 10, "waitSeconds": 20}`, &leased)
		for _, it := range leased.Items {
			verb, body := "/done", map[string]string{"lease": it.Lease}
			if failed := reconcile(it); failed != nil { // retried, after a growing delay
				verb, body["error"] = "/retry", failed.Error()
			}
			text, _ := json.Marshal(body)
			code, err = call("POST", verb, string(text), nil) // 409: too late, the lease has run out
		}
		if code == 404 { // after a restart, informerd does not have the queues of its clients
			_, err = call("PUT", "", spec, nil)
		}
		if err != nil && code != 409 {
			fmt.Println(err)
			time.Sleep(time.Second)
		}
	}
}
