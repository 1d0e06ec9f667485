// Reads and makes what transparency logs exchange, with the packages of others: see the commands in main.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"filippo.io/torchwood"
	fnote "github.com/transparency-dev/formats/note"
	fproof "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/formats/witness"
	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/tessera/fsck"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

var commands = map[string]func([]string) (any, error){
	"note": openNote, "paths": checkPaths, "tlog-proof": checkProof, "policy": checkPolicy, "tiles": checkTiles, "sign": sign,
	"append": appendEntries,
}

func main() {
	answer, err := commands[os.Args[1]](os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(answer)
}

// checkpoint opens the checkpoint in data with a log's key and keys of witnesses.
func checkpoint(data []byte, keys ...string) (torchwood.Checkpoint, *note.Note, error) {
	log, err := note.NewVerifier(keys[0])
	if err != nil {
		return torchwood.Checkpoint{}, nil, err
	}
	verifiers := []note.Verifier{log}
	for _, key := range keys[1:] {
		seen, err := fnote.NewVerifierForCosignatureV1(key)
		if err != nil {
			return torchwood.Checkpoint{}, nil, err
		}
		verifiers = append(verifiers, seen)
	}
	opened, err := note.Open(data, note.VerifierList(verifiers...))
	if err != nil {
		return torchwood.Checkpoint{}, nil, err
	}
	parsed, err := torchwood.ParseCheckpoint(opened.Text)
	if err == nil && parsed.Origin != log.Name() {
		err = fmt.Errorf("origin %q is not the name of the key", parsed.Origin)
	}
	return parsed, opened, err
}

// note FILE KEY...: the signed text, and how many of the keys signed it.
func openNote(args []string) (any, error) {
	data, err := os.ReadFile(args[0])
	if err != nil {
		return nil, err
	}
	parsed, opened, err := checkpoint(data, args[1:]...)
	if err != nil {
		return nil, err
	}
	return map[string]any{"text": opened.Text, "size": parsed.N, "signatures": len(opened.Sigs)}, nil
}

// paths FILE: inclusion and consistency paths, as JSON.
func checkPaths(args []string) (any, error) {
	var given struct {
		Inclusion []struct {
			Size, Index int64
			Root, Leaf  tlog.Hash
			Path        []tlog.Hash
		}
		Consistency []struct {
			Old, New         int64
			OldRoot, NewRoot tlog.Hash
			Path             []tlog.Hash
		}
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &given); err != nil {
		return nil, err
	}
	for _, each := range given.Inclusion {
		if err := tlog.CheckRecord(each.Path, each.Size, each.Root, each.Index, each.Leaf); err != nil {
			return nil, fmt.Errorf("index %d of %d: %w", each.Index, each.Size, err)
		}
	}
	for _, each := range given.Consistency {
		if err := tlog.CheckTree(each.Path, each.New, each.NewRoot, each.Old, each.OldRoot); err != nil {
			return nil, fmt.Errorf("%d to %d: %w", each.Old, each.New, err)
		}
	}
	return len(given.Inclusion) + len(given.Consistency), nil
}

// tlog-proof FILE ENTRY KEY: the index of the entry, if the proof file holds for it.
func checkProof(args []string) (any, error) {
	data, err := os.ReadFile(args[0])
	if err != nil {
		return nil, err
	}
	entry, err := os.ReadFile(args[1])
	if err != nil {
		return nil, err
	}
	var read fproof.TLogProof
	if err := read.Unmarshal(data); err != nil {
		return nil, err
	}
	tree, _, err := checkpoint(read.Checkpoint, args[2:]...)
	if err != nil {
		return nil, err
	}
	var path tlog.RecordProof
	for _, hash := range read.Hashes {
		path = append(path, tlog.Hash(hash))
	}
	return read.Index, tlog.CheckRecord(path, tree.N, tree.Hash, int64(read.Index), tlog.RecordHash(entry))
}

// policy FILE CHECKPOINT: whether the witnesses of the policy signed the checkpoint.
func checkPolicy(args []string) (any, error) {
	policy, err := os.ReadFile(args[0])
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(args[1])
	if err != nil {
		return nil, err
	}
	group, err := witness.ParsePolicy(policy)
	if err != nil {
		return nil, err
	}
	return group.Satisfied(data), nil
}

// tiles FOLDER KEY: what tessera's check and torchwood's client read from the tiles in FOLDER.
func checkTiles(args []string) (any, error) {
	verifier, err := note.NewVerifier(args[1])
	if err != nil {
		return nil, err
	}
	files := client.FileFetcher{Root: args[0]}
	if err := fsck.New(verifier.Name(), verifier, files, leafHashes, fsck.Opts{N: 2}).Check(context.Background()); err != nil {
		return nil, fmt.Errorf("fsck: %w", err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(args[0])))
	defer server.Close()
	fetcher, err := torchwood.NewTileFetcher(server.URL)
	if err != nil {
		return nil, err
	}
	reader, err := torchwood.NewClient(fetcher)
	if err != nil {
		return nil, err
	}
	data, err := fetcher.ReadEndpoint(context.Background(), "checkpoint")
	if err != nil {
		return nil, err
	}
	tree, _, err := checkpoint(data, args[1])
	if err != nil {
		return nil, err
	}
	entries := []string{}
	for _, entry := range reader.Entries(context.Background(), tree.Tree, 0) {
		entries = append(entries, string(entry))
	}
	return entries, reader.Err()
}

func leafHashes(bundle []byte) ([][]byte, error) {
	var read api.EntryBundle
	if err := read.UnmarshalText(bundle); err != nil {
		return nil, err
	}
	var hashes [][]byte
	for _, entry := range read.Entries {
		hash := tlog.RecordHash(entry)
		hashes = append(hashes, hash[:])
	}
	return hashes, nil
}

// sign KEY TEXT WITNESS: TEXT (a checkpoint) signed with a private key, and cosigned by a witness of that name.
func sign(args []string) (any, error) {
	signer, err := note.NewSigner(args[0])
	if err != nil {
		return nil, err
	}
	seed := sha256.Sum256([]byte(args[2]))
	cosigner, err := torchwood.NewCosignatureSigner(args[2], ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		return nil, err
	}
	signed, err := note.Sign(&note.Note{Text: strings.TrimSuffix(args[1], "\n") + "\n"}, signer, cosigner)
	if err != nil {
		return nil, err
	}
	return map[string]string{"note": string(signed), "witness": cosigner.Verifier().String()}, nil
}

// append FOLDER KEY FIRST END: a log of tessera in FOLDER gets the entries FIRST to before END; its checkpoint then.
func appendEntries(args []string) (any, error) {
	ctx := context.Background()
	signer, err := note.NewSigner(args[1])
	if err != nil {
		return nil, err
	}
	driver, err := posix.New(ctx, posix.Config{Path: args[0]})
	if err != nil {
		return nil, err
	}
	options := tessera.NewAppendOptions().WithCheckpointSigner(signer).
		WithBatching(64, 50*time.Millisecond).WithCheckpointInterval(100 * time.Millisecond)
	appender, shutdown, reader, err := tessera.NewAppender(ctx, driver, options)
	if err != nil {
		return nil, err
	}
	first, err := strconv.Atoi(args[2])
	if err != nil {
		return nil, err
	}
	end, err := strconv.Atoi(args[3])
	if err != nil {
		return nil, err
	}
	futures := []tessera.IndexFuture{}
	for number := first; number < end; number++ {
		futures = append(futures, appender.Add(ctx, tessera.NewEntry([]byte(fmt.Sprintf("entry %d", number)))))
	}
	awaiter := tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 50*time.Millisecond)
	for _, future := range futures {
		if _, _, err := awaiter.Await(ctx, future); err != nil {
			return nil, err
		}
	}
	if err := shutdown(ctx); err != nil {
		return nil, err
	}
	data, err := reader.ReadCheckpoint(ctx)
	return string(data), err
}
