// gVisor's shim, started in a way that containerd 1.6 understands and that needs no CAP_SYS_RESOURCE.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	runsc "gvisor.dev/gvisor/pkg/shim/v1"
	_ "gvisor.dev/gvisor/pkg/shim/v1/plugin"
)

type manager struct{ shim.Manager }

// Start starts the shim of one container and prints its address alone. gVisor's own Start lowers an OOM score, which
// fails without that capability, and answers in JSON, which containerd reads from 1.7 on.
func (manager) Start(ctx context.Context, id string, opts shim.StartOpts) (shim.BootstrapParams, error) {
	none := shim.BootstrapParams{}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return none, err
	}
	self, err := os.Executable()
	if err != nil {
		return none, err
	}
	address, err := shim.SocketAddress(ctx, opts.Address, id, false)
	if err != nil {
		return none, err
	}
	_ = shim.RemoveSocket(address) // of a shim with the same id that was killed
	socket, err := shim.NewSocket(address)
	if err != nil {
		return none, err
	}
	file, err := socket.File()
	if err != nil {
		return none, err
	}
	// containerd finds the shim here after its own restart, and the shim removes its socket when it ends.
	if err := os.WriteFile("address", []byte(address), 0o644); err != nil {
		return none, err
	}
	command := exec.Command(self, "-namespace", namespace, "-address", opts.Address, "-id", id)
	command.ExtraFiles = []*os.File{file}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		_ = shim.RemoveSocket(address)
		return none, err
	}
	fmt.Print(address)
	os.Exit(0)
	return none, nil
}

func main() {
	shim.Run(context.Background(), manager{runsc.NewShimManager("io.containerd.runsc.v1")})
}
