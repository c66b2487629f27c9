# Completion of coretap and coretap-nats for fish. Asks the program, so that it is never stale.
for program in coretap coretap-nats
	# One of the two may not be installed, and fish would say so at each Tab.
	type -q $program; or continue
	complete -c $program -f
	$program --help 2>/dev/null | string match -rg '^  ([a-z]+) +(.*)' | while read -l command
		read -l summary
		complete -c $program -n __fish_use_subcommand -a $command -d "$summary"
		$program $command --help 2>/dev/null | sed 's/^\( *\)\(--[^,]*\), \(--.*\)/\1\2\n\1\3/' | string match -rg '^ *--([a-z-]+) *(.*)' | while read -l name
			read -l text
			complete -c $program -n "__fish_seen_subcommand_from $command" -l $name -d "$text"
		end
	end
	complete -c $program -n "__fish_seen_subcommand_from tail topics record" -a "(coretap topics 2>/dev/null | string match -r '^[a-z_]+\.[a-z_]+')"
end
complete -c coretap -n "__fish_seen_subcommand_from record play probes keygen" -F
