// What an error of the client is called, and the status of the protocol that it carries.
package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

type failure struct {
	Kind string `json:"kind"`
	Code int32  `json:"code"`
	Text string `json:"text"`
}

// unsupported says what the client lacks.
type unsupported string

func (lack unsupported) Error() string { return string(lack) }

// status finds the client's own words for a status in the text of an error: at a start it does not wrap the error.
var status = regexp.MustCompile(`CODE: ([A-Z_]+), MESSAGE: `)

func describe(err error) failure {
	var lack unsupported
	if errors.As(err, &lack) {
		return failure{Kind: "Unsupported", Text: err.Error()}
	}
	if code := codeOf(err); code != 0 {
		return failure{Kind: "ErrRpcStatus", Code: code, Text: err.Error()}
	}
	return failure{Kind: strings.TrimPrefix(fmt.Sprintf("%T", err), "*"), Text: err.Error()}
}

func codeOf(err error) int32 {
	var refusal *rmq.ErrRpcStatus
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	if words := status.FindStringSubmatch(err.Error()); words != nil {
		return v2.Code_value[words[1]]
	}
	return 0
}
