# Completion of coretapd for fish. Asks the program, so that it is never stale.
coretapd --help 2>/dev/null | string match -rg '^ *--([a-z-]+)( [A-Z:]+|) +(.*)' | while read -l name
	read -l value
	read -l text
	switch (string trim -- "$value")
		case ''
			complete -c coretapd -f -l $name -d "$text"
		case PATH FILE DIR
			complete -c coretapd -r -F -l $name -d "$text"
		case GLOB
			complete -c coretapd -x -l $name -d "$text" -a "(coretap topics 2>/dev/null | string match -r '^[a-z_]+\.[a-z_]+')"
		case '*'
			complete -c coretapd -x -l $name -d "$text"
	end
end
complete -c coretapd -f
