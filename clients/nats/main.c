/* coretap-nats: what coretapd publishes, in NATS JetStream. */
#include "../c/command/command.h"

extern const struct subcommand command_forward, command_setup, command_nats_tail;

static const struct subcommand *const subcommands[] = { &command_setup, &command_forward,
							&command_nats_tail, NULL };

int main(int argc, char **argv)
{
	return program_run("coretap-nats", subcommands, argc, argv);
}
