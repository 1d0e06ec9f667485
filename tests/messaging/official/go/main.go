// A driver of the official Go client of RocketMQ 5: reads requests from standard input and writes answers and events
// to standard output, as the README of the folder above says.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// object is a JSON object that is written.
type object map[string]any

// request is any request: what does not belong to its kind is empty.
type request struct {
	ID         int64             `json:"id"`
	Request    string            `json:"request"`
	Name       string            `json:"name"`
	Topics     []string          `json:"topics"`
	Attempts   int32             `json:"attempts"`
	Check      string            `json:"check"`
	Topic      string            `json:"topic"`
	Body       string            `json:"body"`
	Fill       int               `json:"fill"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Group      string            `json:"group"`
	Delay      int64             `json:"delay"`
	Properties map[string]string `json:"properties"`
	End        string            `json:"end"`
	Await      int64             `json:"await"`
	Filters    map[string]filter `json:"filters"`
	Count      int32             `json:"count"`
	Invisible  int64             `json:"invisible"`
	Number     int64             `json:"number"`
	Threads    int32             `json:"threads"`
	Fail       map[string]int32  `json:"fail"`
	Hold       int64             `json:"hold"`
}

// filter is a type, "TAG" or "SQL", and an expression.
type filter [2]string

var (
	output     = os.Stdout
	outputLock sync.Mutex
)

// write prints one line of JSON, whole.
func write(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	outputLock.Lock()
	defer outputLock.Unlock()
	output.Write(append(text, '\n'))
}

// answer carries out a request and writes what came of it.
func (d *driver) answer(r request) {
	defer func() {
		if cause := recover(); cause != nil {
			write(object{"id": r.ID, "error": failure{Kind: "panic", Text: fmt.Sprint(cause)}})
		}
	}()
	result, err := d.carryOut(r)
	if err != nil {
		write(object{"id": r.ID, "error": describe(err)})
	} else {
		write(object{"id": r.ID, "ok": result})
	}
}

func (d *driver) carryOut(r request) (object, error) {
	switch r.Request {
	case "producer":
		return d.produce(r)
	case "send":
		return d.send(r)
	case "transaction":
		return d.transact(r)
	case "simple":
		return d.consume(r)
	case "receive":
		return d.receive(r)
	case "ack":
		return d.ack(r)
	case "hide":
		return d.hide(r)
	case "push":
		return d.push(r)
	case "close":
		return d.close(r)
	case "recall":
		return nil, unsupported("the client cannot recall messages")
	}
	return nil, fmt.Errorf("there is no request %q", r.Request)
}

func main() {
	os.Stdout = os.Stderr
	os.Setenv(rmq.CLIENT_LOG_ROOT, filepath.Join(os.Getenv("HOME"), "logs"))
	rmq.ResetLogger()
	setConnections(os.Getenv("TLS") == "1")
	d := newDriver(os.Args[1], os.Getenv("ACCESS_KEY"), os.Getenv("SECRET"))
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			write(object{"id": r.ID, "error": describe(err)})
			continue
		}
		go d.answer(r)
	}
}
