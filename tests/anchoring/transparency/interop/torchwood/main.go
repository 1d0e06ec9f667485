// Verifies and makes proof files with torchwood's own functions, which need a newer Go than the module in go/.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/tlog"
)

var commands = map[string]func([]string) (any, error){"verify": verify, "checkpoint": checkpoint, "format": format}

func main() {
	answer, err := commands[os.Args[1]](os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(answer)
}

func readAll(paths ...string) ([][]byte, error) {
	var contents [][]byte
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		contents = append(contents, data)
	}
	return contents, nil
}

// verify POLICY PROOF ENTRY: true, if the policy trusts the checkpoint of the proof file and the entry is in its tree.
func verify(args []string) (any, error) {
	files, err := readAll(args[:3]...)
	if err != nil {
		return nil, err
	}
	policy, err := torchwood.ParsePolicy(files[0])
	if err != nil {
		return nil, err
	}
	return true, torchwood.VerifyProof(policy, tlog.RecordHash(files[2]), files[1])
}

// checkpoint POLICY FILE: origin and size of a checkpoint that the policy trusts.
func checkpoint(args []string) (any, error) {
	files, err := readAll(args[:2]...)
	if err != nil {
		return nil, err
	}
	policy, err := torchwood.ParsePolicy(files[0])
	if err != nil {
		return nil, err
	}
	read, _, err := torchwood.VerifyCheckpoint(files[1], policy)
	return map[string]any{"origin": read.Origin, "size": read.N}, err
}

// format CHECKPOINT INDEX EXTRA HASHES: a proof file; EXTRA may be empty, HASHES are base64 with commas between them.
func format(args []string) (any, error) {
	files, err := readAll(args[0])
	if err != nil {
		return nil, err
	}
	var index int64
	if _, err := fmt.Sscan(args[1], &index); err != nil {
		return nil, err
	}
	var path tlog.RecordProof
	for _, each := range strings.Split(args[3], ",") {
		data, err := base64.StdEncoding.DecodeString(each)
		if err != nil || len(data) != tlog.HashSize {
			return nil, fmt.Errorf("%q is not a hash in base64", each)
		}
		path = append(path, tlog.Hash(data))
	}
	if args[2] == "" {
		return string(torchwood.FormatProof(index, path, files[0])), nil
	}
	return string(torchwood.FormatProofWithExtraData(index, []byte(args[2]), path, files[0])), nil
}
