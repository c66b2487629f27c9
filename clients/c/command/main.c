/* coretap: watches, lists and checks what coretapd publishes. */
#include "command.h"

static const struct subcommand *const subcommands[] = {
	&command_tail, &command_evictions, &command_watch,  &command_top,    &command_record,
	&command_play, &command_topics,	   &command_probes, &command_doctor, &command_keygen,
	NULL,
};

int main(int argc, char **argv)
{
	return program_run("coretap", subcommands, argc, argv);
}
