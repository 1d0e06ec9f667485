// Verifies and makes proof files with torchwood's own functions, which need a newer Go than the module in go/.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

var commands = map[string]func([]string) (any, error){
	"verify": verify, "checkpoint": checkpoint, "format": format, "key": key, "submit": submit,
}

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

// key ORIGIN: a new key of a log, the private and the public half.
func key(args []string) (any, error) {
	private, public, err := note.GenerateKey(rand.Reader, args[0])
	return []string{private, public}, err
}

// submit URL WITNESS PRIVATE: a log that grows to 5, 6 and 300 entries has each checkpoint cosigned by the witness at
// URL; answers with the last size, the number of cosignatures that hold, and a proof file of entry 257 (its text is "257")
// that ends with the last checkpoint and its cosignature.
func submit(args []string) (any, error) {
	witness, err := torchwood.NewCosignatureVerifier(args[1])
	if err != nil {
		return nil, err
	}
	signer, err := note.NewSigner(args[2])
	if err != nil {
		return nil, err
	}
	var stored []tlog.Hash
	read := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		found := make([]tlog.Hash, len(indexes))
		for at, index := range indexes {
			found[at] = stored[index]
		}
		return found, nil
	})
	var old, good, size int64
	var cosigned []byte
	for _, size = range []int64{5, 6, 300} {
		for at := old; at < size; at++ {
			more, err := tlog.StoredHashes(at, fmt.Appendf(nil, "%d", at), read)
			if err != nil {
				return nil, err
			}
			stored = append(stored, more...)
		}
		root, err := tlog.TreeHash(size, read)
		if err != nil {
			return nil, err
		}
		text := torchwood.Checkpoint{Origin: signer.Name(), Tree: tlog.Tree{N: size, Hash: root}}.String()
		signed, err := note.Sign(&note.Note{Text: text}, signer)
		if err != nil {
			return nil, err
		}
		var body bytes.Buffer
		fmt.Fprintf(&body, "old %d\n", old)
		if old > 0 {
			proof, err := tlog.ProveTree(size, old, read)
			if err != nil {
				return nil, err
			}
			for _, hash := range proof {
				fmt.Fprintln(&body, hash)
			}
		}
		body.WriteString("\n")
		body.Write(signed)
		answer, err := http.Post(args[0]+"/add-checkpoint", "text/plain", &body)
		if err != nil {
			return nil, err
		}
		lines, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != 200 {
			return nil, fmt.Errorf("status %d: %s (%v)", answer.StatusCode, lines, err)
		}
		opened, err := note.Open(append([]byte(text+"\n"), lines...), note.VerifierList(witness))
		if err != nil {
			return nil, err
		}
		good += int64(len(opened.Sigs))
		old = size
		cosigned = append(signed, lines...)
	}
	path, err := tlog.ProveRecord(old, 257, read)
	if err != nil {
		return nil, err
	}
	proof := string(torchwood.FormatProof(257, path, cosigned))
	return map[string]any{"size": old, "cosignatures": good, "proof": proof}, nil
}
